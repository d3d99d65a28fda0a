# Boots Debian's kernel in QEMU (software emulation, no KVM) and runs a shell script in it. Sourced
# by scripts/guest.sh and the scenarios; needs the packages of `scripts/setup.sh guest`.
#
#   guest_build                   kernel and initramfs under $guest_cache, once
#   guest_run [OPTION...] SCRIPT  boots and runs SCRIPT (busybox sh, as root); its output and
#                                 standard error come out here, its exit code is returned
#     --drive FILE                a raw image: /dev/vda, then /dev/vdb, ...
#     --put FILE                  a file for the guest: /put/NAME
#     --seconds N                 time limit [180]
#     --log FILE                  the kernel's console
#
# 124: the time limit; 125: the guest was reset or died before the script ended. The guest reaches
# the host's loopback as 10.0.2.2. The host is not touched: the kernel's package is downloaded and
# unpacked under target/, never installed.

export PATH="$PATH:/usr/sbin:/sbin"
guest_cache=${WEFT_GUEST_CACHE:-$(dirname "${BASH_SOURCE[0]}")/../../target/guest}

# What the scenarios use, apart from what is built into Debian's kernel. The rest of what these
# need is found by depmod.
guest_modules=(virtio_pci virtio_blk virtio_net nbd ext4 crc32c_generic
  dm-mod dm-cache dm-cache-smq dm-log-writes hfs nls_utf8 nls_cp437 nls_iso8859-1 loop)
# By names that busybox has no applet of: it prefers its own (mke2fs would be one).
guest_programs=(nbd-client mkfs.ext4 e2fsck dmsetup getfattr)

# Says what is missing; false if anything is.
guest_ready() {
  local tool missing=()
  for tool in qemu-system-x86_64 busybox cpio depmod modprobe apt-get dpkg-deb "${guest_programs[@]}"; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  [ "${#missing[@]}" -eq 0 ] && return
  echo "skipped: no ${missing[*]} (scripts/setup.sh guest installs what a guest needs)"
  return 1
}

guest_build() {
  mkdir -p "$guest_cache"
  guest_cache=$(realpath "$guest_cache")
  local recipe stage version package module program library
  recipe=$(sha256sum <"${BASH_SOURCE[0]}" | cut -c 1-16)
  guest_kernel=$guest_cache/vmlinuz guest_initramfs=$guest_cache/initramfs-$recipe.gz
  [ -s "$guest_initramfs" ] && [ -s "$guest_kernel" ] && return

  package=$(apt-cache depends linux-image-amd64 | awk '$1 == "Depends:" {print $2; exit}')
  version=${package#linux-image-}
  [ -n "$version" ] || { echo "guest: apt knows no linux-image-amd64" >&2; return 1; }
  if [ ! -d "$guest_cache/root-$version/lib/modules/$version" ]; then
    (cd "$guest_cache" && apt-get -q download "$package" >/dev/null 2>&1) &&
      dpkg-deb -x "$guest_cache/$package"_*.deb "$guest_cache/root-$version" || return
    rm -f "$guest_cache/$package"_*.deb
    depmod -b "$guest_cache/root-$version" "$version" || return
  fi
  cp "$guest_cache/root-$version/boot/vmlinuz-$version" "$guest_kernel"
  rm -f "$guest_cache"/initramfs-*.gz

  stage=$(mktemp -d "$guest_cache/stage.XXXXXX")
  mkdir -p "$stage"/{bin,dev,proc,sys,tmp,mnt,put,run,etc,lib64}
  cp "$(command -v busybox)" "$stage/bin/busybox"
  for program in "${guest_programs[@]}"; do
    cp -L "$(command -v "$program")" "$stage/bin/$program"
    ldd "$(command -v "$program")" | awk '$2 == "=>" {print $3} $1 ~ /^\// {print $1}'
  done | sort -u | while read -r library; do
    mkdir -p "$stage$(dirname "$library")" && cp -L "$library" "$stage$library"
  done
  for module in "${guest_modules[@]}"; do
    modprobe -d "$guest_cache/root-$version" -S "$version" --show-depends "$module" |
      awk '$1 == "insmod" {print $2}'
  done | sort -u | while read -r module; do
    module=${module#"$guest_cache/root-$version"}
    mkdir -p "$stage$(dirname "$module")" && cp "$guest_cache/root-$version$module" "$stage$module"
  done
  cp "$guest_cache/root-$version/lib/modules/$version"/modules.{order,builtin,builtin.modinfo} \
    "$stage/lib/modules/$version/"
  depmod -b "$stage" "$version" || return

  cat >"$stage/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
# crc32c first: libcrc32c asks for it in a way that busybox's modprobe does not see.
modprobe -a virtio_pci virtio_blk virtio_net crc32c_generic
ip link set lo up
ip link set eth0 up && ip addr add 10.0.2.15/24 dev eth0
# The second serial line carries what the script says, as it is: no echo, no added returns.
stty -F /dev/ttyS1 raw -echo
cd /tmp
sh /put/script >/dev/ttyS1 2>&1 </dev/null
echo "@exit $?" >/dev/ttyS1
sleep 0.2
poweroff -f
INIT
  chmod 755 "$stage/init"
  (cd "$stage" && find . | cpio -o -H newc --quiet) | gzip -1 >"$guest_initramfs.new"
  rm -rf "$stage"
  mv "$guest_initramfs.new" "$guest_initramfs"
}

guest_run() {
  local seconds=180 log=/dev/null drives=() put=() script dir qemu code
  while [ $# -gt 1 ]; do
    case $1 in
      --drive) drives+=(-drive "file=$2,format=raw,if=virtio,cache=writeback"); shift 2 ;;
      --put) put+=("$2"); shift 2 ;;
      --seconds) seconds=$2; shift 2 ;;
      --log) log=$2; shift 2 ;;
      *) echo "guest: unknown option $1" >&2; return 2 ;;
    esac
  done
  script=$1
  guest_build || return 2
  dir=$(mktemp -d)
  mkdir "$dir/put"
  cp "$script" "$dir/put/script"
  if [ "${#put[@]}" -gt 0 ]; then cp "${put[@]}" "$dir/put/"; fi
  # The kernel unpacks archives one after another: the cached one, then this run's files.
  cp "$guest_initramfs" "$dir/initramfs"
  (cd "$dir" && find put | cpio -o -H newc --quiet) | gzip -1 >>"$dir/initramfs"
  : >"$dir/out"
  timeout "$seconds" qemu-system-x86_64 -accel tcg -machine q35 -cpu max -smp 2 -m 512 -nodefaults \
    -display none -no-reboot -kernel "$guest_kernel" -initrd "$dir/initramfs" \
    -append "console=ttyS0 quiet loglevel=6 panic=-1 random.trust_cpu=on" \
    -serial "file:$log" -serial "file:$dir/out" \
    -netdev user,id=net -device virtio-net-pci,netdev=net,romfile= "${drives[@]}" \
    </dev/null 2>"$dir/err" &
  qemu=$!
  # What the guest says is shown as it comes.
  tail -f -n +1 --pid="$qemu" -s 0.2 "$dir/out" 2>/dev/null | sed -u '/^@exit [0-9]*$/d'
  wait "$qemu"
  code=$?
  if [ "$code" -eq 0 ]; then
    code=$(sed -n 's/^@exit \([0-9]*\)$/\1/p' "$dir/out" | tail -n 1)
    code=${code:-125}
  elif [ "$code" -ne 124 ]; then
    cat "$dir/err" >&2
    code=125
  fi
  rm -rf "$dir"
  return "$code"
}
