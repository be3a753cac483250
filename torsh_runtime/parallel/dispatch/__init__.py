"""How tokens come to the ranks that have their experts, and back.

routing (pure: which token goes to which expert, and where that is), ranks (who has which tokens and
experts), rows (operations on tokens that lie by expert), sending (there and back).
"""
