#!/bin/bash
# The init process of a node. It starts in new mount, uts, ipc, pid and cgroup namespaces and in the
# network namespace of the node, sets up a file system like that of a machine, prints "ready" and
# becomes PAUSE. Paths inside are the usual ones; the files of the machine are not changed.
#
# NAME     host name
# DISK     directory with the files that survive a reboot of the node
# PKI      the cluster's certificates
# PAUSE    the program that waits and reaps processes
# CGROUPS  "v2", or the list of version 1 hierarchies
set -euo pipefail

hostname "$NAME"
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/{disk,pki,netns,lock,containerd}
mount --bind "$DISK" /run/disk
mount --bind "$PKI" /run/pki

# Changes in these directories are private and temporary ...
for dir in etc var; do
    mkdir -p "/run/changes/$dir"/{upper,work}
    mount -t overlay -o "lowerdir=/$dir,upperdir=/run/changes/$dir/upper,workdir=/run/changes/$dir/work" \
        overlay "/$dir"
done
# ... except in these.
for dir in var/lib/{kubelet,containerd,cni,etcd} var/log/{pods,containers} etc/{cni/net.d,kubernetes}; do
    mkdir -p "/$dir" "/run/disk/$dir"
    mount --bind "/run/disk/$dir" "/$dir"
done

mount -t proc proc /proc
mount -t sysfs sysfs /sys # /sys/class/net of this network namespace
if [ "$CGROUPS" = v2 ]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
else
    mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
    for controllers in $CGROUPS; do
        dir=/sys/fs/cgroup/${controllers#name=}
        mkdir "$dir"
        case $controllers in
        name=*) mount -t cgroup -o "none,$controllers" cgroup "$dir" ;;
        *) mount -t cgroup -o "$controllers" cgroup "$dir" ;;
        esac
    done
fi
mount -t bpf bpf /sys/fs/bpf || true

# The kubelet writes these settings of the whole machine: it gets files with the desired values.
mkdir /run/sysctl
while read -r name value; do
    [ -e "/proc/sys/$name" ] || continue
    file=/run/sysctl/${name//\//.}
    echo "$value" >"$file"
    mount --bind "$file" "/proc/sys/$name"
done <<END
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
kernel/panic 10
kernel/panic_on_oops 1
END

mount --make-rshared /
echo ready
exec "$PAUSE" >/dev/null 2>&1
