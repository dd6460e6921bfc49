"""Routes of the server: one file each, registered under method and path."""

from recgrad.serving.routes._route import ROUTES, Route

__all__ = ["ROUTES", "Route"]
