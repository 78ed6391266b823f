# SPDX-License-Identifier: MIT OR Apache-2.0
"""The changes that can be made to a program, one in each module: its class `Change`."""
