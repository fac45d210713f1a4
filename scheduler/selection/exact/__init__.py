"""Selectors the product uses: exact search and PBQP, with proved bounds."""
