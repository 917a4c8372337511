"""The bundled network and images, and the demo that adapts the one to a corrupted copy of the other."""
