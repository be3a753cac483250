"""Judges whether workers still make progress: what they note, what is seen of them, the verdict."""
