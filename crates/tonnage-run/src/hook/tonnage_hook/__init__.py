# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs inside every Python process of a job, and writes what it learns about memory to the log of the stand-in.

The modules of this folder serve every framework; a folder, such as `torch`, follows one. A module imports names of
this package and not modules: Python empties a module that is referred to at the end, when functions are still called.
"""
