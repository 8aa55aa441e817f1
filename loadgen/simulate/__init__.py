"""Discrete events under a virtual clock around the scheduler and KV cores that serve for real."""
