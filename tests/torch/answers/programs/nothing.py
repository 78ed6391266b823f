# SPDX-License-Identifier: MIT OR Apache-2.0
"""Uses no GPU at all."""

print("hello")
