"""Images as a browser can show them: JPEG, upright, no larger than needed. Nothing but images leaves the folder."""

import io
from pathlib import Path

from PIL import Image, ImageOps

from momatch.data.decode import quiet_pillow

#: Longest sides in pixels: one image at a time, and in a grid.
LARGE, SMALL = 1280, 320
_QUALITY = 88


class PictureError(ValueError):
    """An image cannot be shown."""


def picture(path: Path, side: int) -> bytes:
    """An image file as JPEG, its longer side at most `side`.

    Raises:
        PictureError: if the file is gone or is no image that can be decoded; the message is for the person who labels.
    """
    try:
        with quiet_pillow(), Image.open(path) as image:
            image.draft("RGB", (side, side))
            upright = ImageOps.exif_transpose(image)
            upright.thumbnail((side, side))
            shown = io.BytesIO()
            _on_white(upright).save(shown, "JPEG", quality=_QUALITY)
            return shown.getvalue()
    except FileNotFoundError as error:
        raise PictureError("the file is gone") from error
    # Pillow raises nearly anything on a damaged file.
    except Exception as error:
        raise PictureError(f"the file cannot be decoded ({type(error).__name__})") from error


def _on_white(image: Image.Image) -> Image.Image:
    if "A" not in image.getbands() and "transparency" not in image.info:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
