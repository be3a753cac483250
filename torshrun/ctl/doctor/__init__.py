"""torshctl doctor: what of this host, its network and its stores would keep jobs from running.

Each area has facts, gathered within a deadline, and a pure check that makes findings of them.
"""
