"""Results of `skipjoin bench`, as tables and pictures."""
