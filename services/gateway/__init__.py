"""OpenAI-compatible REST and SSE in front of the scheduler: tokenise, submit, detokenise, stop strings."""
