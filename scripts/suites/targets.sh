# Mounts on which the suites of other projects run, for ltp.sh, stress-ng.sh and git-suite.sh, which
# source this file. They set $weft, the command, and $dir, a directory for images and mount points.
#
# A target is a kind of mount:
#
#   soft, journal=..., async   an ext2 volume, or ext3 with a journal, in that order of writes
#   hostdir                    a directory of a kernel ext4 volume, through a transformation network
#   ringer                     a cell of the shared file service
#   hfs                        an HFS volume
#   kernel-ext3, kernel-ext4   the control: the kernel's driver; what fails there, too, is no finding
#
# $size is the size of each volume, $rule the transformation rule, $owner the user and group that own
# everything on HFS, which has no owners.

# A target's mount point; its name is one that shells and makefiles take as it is.
place_of() { echo "$dir/${1//=/-}"; }

# CONTROL names one control for all targets, which saves the time of the other.
control_of() {
  case ${CONTROL:-$1} in
    kernel-*) echo "$CONTROL" ;;
    hostdir | ringer | hfs) echo kernel-ext4 ;;
    *) echo kernel-ext3 ;;
  esac
}

known_target() {
  case $1 in soft | journal=* | async | hostdir | ringer | hfs) ;; *) return 1 ;; esac
}

declare -A daemon_of=() server_of=()

# begin TARGET: makes and mounts it, empty. What its daemon says is in $keep/TARGET.log.
begin() {
  local target=$1 place image log="$keep/$1.log" command
  place=$(place_of "$target")
  image=$place.img
  rm -rf "$image" "$place.socket"
  mkdir -p "$place"
  case $target in
    kernel-*)
      truncate -s "$size" "$image"
      mke2fs -q -F -t "${target#kernel-}" "$image"
      mount -o loop "$image" "$place"
      rmdir "$place/lost+found"
      chmod 1777 "$place"
      return
      ;;
    hostdir)
      host_volume "$place"
      mkdir "$place.below/source"
      echo "$rule" >"$place.rules"
      command=(mount "hostdir:$place.below/source" "$place" --transform "$place.rules" -o allow_other)
      ;;
    ringer)
      host_volume "$place"
      "$weft" ringer serve "$place.below/cell" --listen "unix:$place.socket" >>"$log" 2>&1 &
      server_of[$target]=$!
      until [ -S "$place.socket" ]; do
        kill -0 "${server_of[$target]}" || { cat "$log" >&2; return 1; }
        sleep 0.1
      done
      command=(ringer mount "unix:$place.socket" "$place" --store "$place.below/store" -o allow_other)
      ;;
    *)
      "$weft" --quiet mkfs "$(volume_kind "$target")" "$image" --size "$size"
      command=(mount "$image" "$place" -o "$(volume_options "$target")")
      ;;
  esac
  "$weft" "${command[@]}" >>"$log" 2>&1 &
  daemon_of[$target]=$!
  until mountpoint -q "$place"; do
    kill -0 "${daemon_of[$target]}" 2>/dev/null || { cat "$log" >&2; return 1; }
    sleep 0.1
  done
  [ "$target" = hfs ] || chmod 1777 "$place"
}

# The format of the volume of a target, for weft mkfs.
volume_kind() {
  case $1 in journal*) echo ext3 ;; hfs) echo hfs ;; *) echo ext2 ;; esac
}

# The options of a mount of such a volume.
volume_options() {
  case $1 in
    hfs) echo "allow_other,uid=$owner,gid=$owner" ;;
    *) echo "allow_other,order=$1" ;;
  esac
}

# host_volume PLACE: an ext4 volume of the kernel's at PLACE.below: what a target can fill, and no more.
host_volume() {
  truncate -s "$size" "$1.img"
  mke2fs -q -F -t ext4 "$1.img"
  mkdir -p "$1.below"
  mount -o loop "$1.img" "$1.below"
}

# alive TARGET: whether the mount still answers.
alive() { timeout -k 5 60 stat -f "$(place_of "$1")" >/dev/null 2>&1; }

# end TARGET: unmounts it and checks what is left; says what is wrong and fails.
end() {
  local target=$1 place status=0
  place=$(place_of "$target")
  umount "$place" || { echo "it cannot be unmounted"; umount -l "$place" || true; status=1; }
  case $target in kernel-*) return $status ;; esac
  wait "${daemon_of[$target]}" || { echo "the mount ended with status $?"; status=1; }
  unset "daemon_of[$target]"
  if grep -E 'panicked|internal error' "$keep/$target.log"; then status=1; fi
  case $target in
    ringer)
      kill "${server_of[$target]}" && wait "${server_of[$target]}" ||
        { echo "the server ended with status $?"; status=1; }
      unset "server_of[$target]"
      umount "$place.below"
      ;;
    hostdir)
      if find "$place.below/source" -name '.weft-*' | grep .; then
        echo "temporary files are left in the source"
        status=1
      fi
      umount "$place.below"
      ;;
    hfs) "$weft" fsck "$place.img" >"$keep/$target.fsck" 2>&1 || { cat "$keep/$target.fsck"; status=1; } ;;
    *) e2fsck -fn "$place.img" >"$keep/$target.fsck" 2>&1 || { cat "$keep/$target.fsck"; status=1; } ;;
  esac
  return $status
}

# give_up TARGET: removes a mount that answers no more, with its daemon.
give_up() {
  local place pid
  place=$(place_of "$1")
  for pid in ${daemon_of[$1]:-} ${server_of[$1]:-}; do kill -KILL "$pid" 2>/dev/null && wait "$pid" || true; done
  unset "daemon_of[$1]" "server_of[$1]"
  umount -l "$place" 2>/dev/null || true
  umount -l "$place.below" 2>/dev/null || true
}
