"""Why workers failed: exits in, root cause and a report for people out."""
