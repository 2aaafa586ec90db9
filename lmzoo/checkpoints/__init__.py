"""Reading and writing of checkpoints in the formats of other libraries."""
