# SPDX-License-Identifier: MIT OR Apache-2.0
"""Follows PyTorch. `recorder.Recorder` is made when torch has been imported, and imports the rest."""
