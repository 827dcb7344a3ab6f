"""The console: pages for browsers. They call the same services as the REST routes, and show the same objects."""
