"""Implements torshctl doctor, which finds what would keep jobs from running on this host.

Each area gathers facts within a deadline, and derives findings from them by a pure check.
"""
