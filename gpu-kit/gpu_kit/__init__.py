"""Measures a GPU and its driver, and changes nothing."""
