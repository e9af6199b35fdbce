"""Integrations with frameworks: one package for each, imported only where it is used."""
