"""Whether workers still make progress: what they note, what is seen of them, and the verdict."""
