"""What the scheduler or launcher around torshrun tells about the job: hints for its options."""
