"""Whether workers still make progress."""
