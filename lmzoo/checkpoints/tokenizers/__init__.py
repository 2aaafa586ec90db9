"""Reading and writing of tokenizers in the files of other libraries."""
