"""Answers of a prescribed form: `response_format` and tool calls."""
