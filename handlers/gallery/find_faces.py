"""Faces in a picture: the cascade of local binary patterns that `pip install scikit-image` comes with."""

import numpy as np
from PIL import Image
from skimage.data import lbp_frontal_face_cascade_filename
from skimage.feature import Cascade

from ts import serve

SMALLEST, LARGEST = (60, 60), (400, 400)  # of a face, in pixels


@serve
class FindFaces:
    """Return the place of each face, in pixels."""

    def setup(self, device: str) -> None:
        self.cascade = Cascade(lbp_frontal_face_cascade_filename())

    def predict(self, picture: Image.Image) -> list[dict[str, int]]:
        faces = self.cascade.detect_multi_scale(
            np.asarray(picture.convert("RGB")), scale_factor=1.2, step_ratio=1, min_size=SMALLEST, max_size=LARGEST
        )
        sides = ("left", "c"), ("top", "r"), ("width", "width"), ("height", "height")
        return [{side: each[name] for side, name in sides} for each in faces]
