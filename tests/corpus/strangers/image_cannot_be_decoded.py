"""A DataLoader worker of rank 0 raises an exception that it wraps in text.

nproc: 2
culprit: 0
kind: exception
hint: rank 0, exit code 1|exited with 1|status 1
needs: torch
seconds: 60
"""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler


class ImageFolder(torch.utils.data.Dataset):
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        name, data = self.files[index]
        if not data.startswith(b"\x89PNG"):
            raise ValueError(f"cannot identify image file {name!r}")
        return torch.tensor(list(data[:8]))


def main():
    dist.init_process_group("gloo")
    files = [(f"{i:03}.png", b"\x89PNG\r\n\x1a\n") for i in range(60)]
    files[44] = ("044.png", b"<html>404</html>")
    sampler = DistributedSampler(files, shuffle=False)
    for images in DataLoader(ImageFolder(files), 5, sampler=sampler, num_workers=1):
        mean = images.float().mean()
        dist.all_reduce(mean)
    dist.destroy_process_group()


main()
