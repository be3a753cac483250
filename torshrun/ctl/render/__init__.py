"""Implements torshctl render, which turns a job file into a script or manifest for a scheduler or
cloud.
"""
