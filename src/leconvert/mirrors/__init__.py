"""Datasets in stores that are reached by URL through `fsspec`: buckets, mirrors, other mounts.

Such stores have no commits and, in general, no hashes: sizes and whatever else they say of a file
(an ETag, a time, a generation) have to do.
"""

from leconvert.mirrors.download import download_tree
from leconvert.mirrors.store import is_url
from leconvert.mirrors.upload import UploadReport, upload_tree

__all__ = ["UploadReport", "download_tree", "is_url", "upload_tree"]
