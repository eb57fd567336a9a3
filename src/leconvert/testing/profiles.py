"""The datasets that benchmarks are made with; each is generated in well under three minutes."""

from __future__ import annotations

from collections.abc import Mapping

from leconvert.testing.spec import CameraSpec, DatasetSpec, RandomLengths

__all__ = ["PROFILES"]

_H264 = {"preset": "ultrafast"}
_AV1 = {"preset": "12", "crf": "49"}


def _three_cameras(clip_bytes: int) -> tuple[CameraSpec, ...]:
    return tuple(
        CameraSpec(
            key=f"observation.images.{name}",
            width=640,
            height=480,
            options=_H264,
            noise_amplitude=48,
            target_clip_bytes=clip_bytes,
        )
        for name in ("front", "left_wrist", "right_wrist")
    )


PROFILES: Mapping[str, DatasetSpec] = {
    "small": DatasetSpec(
        episodes=50,
        frames=300,
        cameras=tuple(
            CameraSpec(
                key=f"observation.images.{name}",
                width=640,
                height=480,
                codec="libsvtav1",
                options=_AV1,
                noise_amplitude=48,
            )
            for name in ("front", "wrist")
        ),
        state_dim=14,
        action_dim=14,
        distinct_clips=2,
    ),
    "mid": DatasetSpec(
        episodes=100,
        frames=300,
        cameras=_three_cameras(7_000_000),
        state_dim=14,
        action_dim=14,
        distinct_clips=3,
    ),
    "big": DatasetSpec(
        episodes=300,
        frames=300,
        cameras=_three_cameras(6_780_000),
        state_dim=14,
        action_dim=14,
        distinct_clips=3,
    ),
    "many": DatasetSpec(
        episodes=4000,
        frames=RandomLengths(seed=0, minimum=57, maximum=63),
        cameras=tuple(
            CameraSpec(
                key=f"observation.images.{name}",
                options=_H264,
                noise_amplitude=48,
                target_clip_bytes=37_000,
            )
            for name in ("front", "wrist")
        ),
        state_dim=7,
        action_dim=7,
        distinct_clips=4,
    ),
    "images": DatasetSpec(
        episodes=60,
        frames=100,
        cameras=(),
        image_keys=("observation.images.front", "observation.images.wrist"),
        image_noise_amplitude=127,
        state_dim=14,
        action_dim=14,
    ),
}
"""``small``, ``mid``, ``big``, ``many`` and ``images``: about 310 MB, 2.1 GB, 6.1 GB, 0.36 GB and
0.2 GB."""
