"""Policies: pure rules over the views that the core hands them. Table name → class in ``TABLE``."""
