"""What is installed here, what is missing, and what a folder's file system keeps.

Looking changes nothing but the folder that is probed, where files are made and removed again. What
may hang or crash with a broken driver (torch, CUDA, NVDEC) is asked in a process of its own, for a
bounded time.
"""

from leconvert.doctor.examination import Examination, examine
from leconvert.doctor.packages import Package, packages_of

__all__ = ["Examination", "Package", "examine", "packages_of"]
