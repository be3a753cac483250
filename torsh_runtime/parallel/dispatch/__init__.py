"""Sends tokens to the ranks that have their experts, and back.

Modules: routing (pure: which token goes to which expert, and its position), ranks (which ranks
have which tokens and experts), rows (operations on tokens that are sorted by expert), sending
(there and back)."""
