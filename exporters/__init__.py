"""Exporters: carriers of records to the outside. Table name → class in ``TABLE``."""
