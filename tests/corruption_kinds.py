"""Which corruptions are not random."""

FIXED = (
    "brightness",
    "contrast",
    "defocus_blur",
    "gaussian_blur",
    "jpeg_compression",
    "pixelate",
    "saturate",
    "zoom_blur",
)
