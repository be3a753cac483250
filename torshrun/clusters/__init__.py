"""Reads hints for options from the scheduler or launcher that started torshrun."""
