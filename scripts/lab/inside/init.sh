#!/bin/bash
# The first program of a guest. Its root is this machine's own /, read-only. Whatever it writes goes
# into memory, to its mailbox (/mnt/lab), or over NFS (/mnt/work).
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run/home
mount -t proc proc /proc
mount -t sysfs sysfs /sys
for folder in /run /mnt /var/lib/nfs /var/tmp /dev/shm; do
  mount -t tmpfs tmpfs "$folder"
done
mkdir -p /mnt/lab /mnt/shared /mnt/work /mnt/disk /run/home /run/scratch /run/rpcbind
mount -t hostfs mailbox /mnt/lab -o "$LAB_MAILBOX"
exec >/mnt/lab/init.log 2>&1 </dev/null
mount -r -t hostfs shared /mnt/shared -o "$LAB_SHARED"
export TMPDIR=/run/scratch

# Modules come from the kernel's package, under a name where modprobe looks for them; the kernel
# calls modprobe by itself as well, without knowing that place.
mkdir -p /run/modules/lib/modules
ln -s "$LAB_MODULES" "/run/modules/lib/modules/$(uname -r)"
printf '#!/bin/sh\nexec modprobe -d /run/modules "$@"\n' >/run/modprobe
chmod +x /run/modprobe
echo /run/modprobe >/proc/sys/kernel/modprobe

hostname "$LAB_HOST"
ip link set lo up
ip addr add "$LAB_ADDRESS/24" dev eth0
ip link set eth0 up

if [ "$LAB_ROLE" = server ]; then
  /run/modprobe nfsd
  mount -t nfsd nfsd /proc/fs/nfsd
  mount /dev/ubda /mnt/disk || exit 1
  mkdir -p /mnt/disk/export /mnt/disk/state
  chmod 1777 /mnt/disk/export
  # Which clients held locks must outlive a restart, or none of them gets its locks back.
  mount --bind /mnt/disk/state /var/lib/nfs
  touch /var/lib/nfs/etab /var/lib/nfs/rmtab
  exportfs -o rw,sync,no_root_squash,no_subtree_check,fsid=0 '*:/mnt/disk/export'
  rpcbind -w
  rpc.mountd --no-nfs-version 2
  rpc.nfsd --lease-time "$LAB_NFS_LEASE" --grace-time "$LAB_NFS_LEASE" 4
  # On a new disk nobody can have a lock to ask back.
  [ -z "$LAB_NEW_DISK" ] || echo Y >/proc/fs/nfsd/v4_end_grace
else
  /run/modprobe nfsv4
  mount -t nfs ${LAB_MOUNT_OPTIONS:+-o "$LAB_MOUNT_OPTIONS"} "$LAB_SERVER:/" /mnt/work || exit 1
fi
exec "$LAB_PYTHON" -I -S "$LAB_AGENT"
