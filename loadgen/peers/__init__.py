"""Recipes for other servers; nothing of them is imported."""
