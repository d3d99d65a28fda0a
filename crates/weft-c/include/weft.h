/*
 * libweft: volumes of ext2, ext3, HFS and MFS in process, and patchgroups ("these changes before
 * those", without waiting for the disk), on such a volume or on a mount of weft.
 *
 *     cc program.c $(pkg-config --cflags --libs weft)
 *
 * Errors. A call returns a negative errno (-ENOENT), or 0 or more if it succeeded. After an error,
 * weft_error_message() has a sentence that says what failed, on what and why. It is kept per thread, as
 * libgit2 does: nobody has to free it, no call needs one more argument, and threads do not see each
 * other's.
 *
 * Handles. weft_volume, weft_file, weft_dir, weft_group and weft_report are opaque. A call that makes one
 * stores it at its last argument, and stores NULL if it fails; each has one call that closes and frees it,
 * which takes NULL too and then does nothing. Strings and structures that a call returns belong to the
 * handle, as said there; whatever is passed to a call stays the caller's, and may be freed after it.
 *
 * Threads. All calls on one handle may come from several threads at a time, but the one that closes it,
 * and weft_dir_next(). A volume that is closed while its files and groups are open closes them: their
 * calls fail with -EBADF, and they still have to be freed. The image is free for others then, but for
 * threads that are still in a group of it: each holds it until its next call of libweft, or its end.
 *
 * Processes. A handle belongs to the process that made it. In a child of fork() every call on a handle of a
 * volume, its files, directories and groups fails with -EBADF, and closing one there writes nothing (it
 * returns -EBADF, too, where it returns anything): the parent goes on as if there were no child. A child
 * that needs the volume opens it anew, once its parent has closed it.
 *
 * Text. A source (the name of an image or a device), an order, a format and a label are UTF-8; paths are
 * bytes. Those in a volume start at its root, with or without a slash: there is no current directory. Sizes
 * and offsets are in bytes.
 *
 * No call prints, reads the environment, or changes the handling of signals. A call that finds an
 * error in libweft itself returns -ENOTRECOVERABLE; close what it was called on, and nothing else.
 */


#ifndef WEFT_H
#define WEFT_H

#include <stddef.h>
#include <stdint.h>

/*
 Opens a file for reading.
 */
#define WEFT_FILE_READ 1

/*
 Opens a file for writing.
 */
#define WEFT_FILE_WRITE 2

/*
 Makes the file if it does not exist.
 */
#define WEFT_FILE_CREATE 4

/*
 With WEFT_FILE_CREATE: fails if the file exists.
 */
#define WEFT_FILE_EXCLUSIVE 8

/*
 Cuts the file to length 0.
 */
#define WEFT_FILE_TRUNCATE 16

/*
 The changes of the group are in no order among themselves.
 */
#define WEFT_GROUP_ORDINARY 0

/*
 Each change of the group is ordered after the one before it.
 */
#define WEFT_GROUP_LINEAR 1

/*
 After a power cut all changes of the group are there, or none: see weft_group_commit(). Needs a volume
 with a journal; on a mount, root or the user who runs it.
 */
#define WEFT_GROUP_ATOMIC 2

/*
 An atomic group whose changes can be undone: see weft_group_abort().
 */
#define WEFT_GROUP_ABORTABLE 3

/*
 The changes of the calling thread.
 */
#define WEFT_SCOPE_THREAD 0

/*
 The changes of the calling process, and of all processes that it starts, directly or not, as long as
 they descend from it. It survives execve(2).
 */
#define WEFT_SCOPE_PROCESS 1

/*
 fsync(2) waits until the file is durable.
 */
#define WEFT_FSYNC_WAIT 0

/*
 fsync(2), fdatasync(2) and writes with O_SYNC do not wait: what is changed afterwards is never durable
 before what was changed until then. After a power cut some of the last changes may be lost that fsync
 had confirmed, but never an earlier one without all later ones.
 */
#define WEFT_FSYNC_BARRIER 4294967295

/*
 Overwrites a file system that the image holds already.
 */
#define WEFT_MKFS_FORCE 1

/*
 Repairs what is found.
 */
#define WEFT_CHECK_REPAIR 1

/*
 Opens the volume for reading only: nothing is written, not even a mark that it is open.
 */
#define WEFT_VOLUME_READ_ONLY 1

/*
 Reading leaves access times as they are.
 */
#define WEFT_VOLUME_NO_ATIME 2

/*
 The names of a directory, as they were when it was opened.
 */
typedef struct weft_dir weft_dir;

/*
 An open file of a volume.
 */
typedef struct weft_file weft_file;

/*
 A patchgroup: a set of changes of one volume that are ordered as a whole. It is made, takes
 dependencies on others (weft_group_depend), then takes changes (weft_group_engage), and neither once
 another depends on it; so there are no cycles.
 */
typedef struct weft_group weft_group;

/*
 The findings of a check.
 */
typedef struct weft_report weft_report;

/*
 An opened volume.
 */
typedef struct weft_volume weft_volume;

/*
 A name of a directory.
 */
typedef struct {
    /*
     The name. It belongs to the weft_dir, and is valid until that is closed.
     */
    const char *name;
    /*
     Number of the inode.
     */
    uint64_t ino;
    /*
     The kind, as `st_mode` of stat(2) has it (S_ISDIR(mode)), without permissions.
     */
    uint32_t mode;
} weft_entry;

/*
 The attributes of a file.
 */
typedef struct {
    /*
     Number of the inode.
     */
    uint64_t ino;
    /*
     Length in bytes.
     */
    uint64_t size_bytes;
    /*
     Space that it takes, in units of 512 bytes.
     */
    uint64_t blocks_512;
    /*
     Last access, in seconds since 1970.
     */
    int64_t atime_sec;
    /*
     Last change of the content.
     */
    int64_t mtime_sec;
    /*
     Last change of the inode.
     */
    int64_t ctime_sec;
    /*
     Nanoseconds of the last access.
     */
    uint32_t atime_nsec;
    /*
     Nanoseconds of the last change of the content.
     */
    uint32_t mtime_nsec;
    /*
     Nanoseconds of the last change of the inode.
     */
    uint32_t ctime_nsec;
    /*
     Kind and permissions, as `st_mode` of stat(2) has them: S_ISDIR(mode) and the like.
     */
    uint32_t mode;
    /*
     Number of names.
     */
    uint32_t nlink;
    /*
     Owner.
     */
    uint32_t uid;
    /*
     Group.
     */
    uint32_t gid;
    /*
     Device number of a device node, as makedev(3) packs it.
     */
    uint32_t rdev;
} weft_attributes;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Reads the names of the directory at `path`, but "." and "..", in no particular order.
 */
int weft_dir_open(const weft_volume *volume, const char *path, weft_dir **dir);

/*
 Stores the next name. Returns 1, or 0 if there are no more. One thread at a time may call it.
 */
int weft_dir_next(weft_dir *dir, weft_entry *entry);

/*
 Frees `dir` and its names.
 */
void weft_dir_close(weft_dir *dir);

/*
 Returns what the last call of this thread that failed says about it: one line of UTF-8, never NULL.
 It is valid until another call of this thread fails.
 */
const char *weft_error_message(void);

/*
 Returns the version of the library, such as "0.1.0". It is valid for ever.
 */
const char *weft_version(void);

/*
 Opens the file at `path`. `flags` are WEFT_FILE_...; a file that is made has the permission bits
 `mode` (0644). An open file stays readable after its name is removed.
 */
int weft_file_open(const weft_volume *volume,
                   const char *path,
                   uint32_t flags,
                   uint32_t mode,
                   weft_file **file);

/*
 Reads up to `len` bytes from byte `offset` on into `buffer`. Returns how many were read: fewer than
 `len` only at the end of the file, 0 behind it.
 */
int64_t weft_file_read(const weft_file *file, void *buffer, size_t len, uint64_t offset);

/*
 Writes all `len` bytes of `data` from byte `offset` on, and makes the file longer if need be. If it
 fails, a part may have been written.
 */
int weft_file_write(const weft_file *file, const void *data, size_t len, uint64_t offset);

/*
 Cuts the file to `len` bytes, or makes it longer with zeroes.
 */
int weft_file_truncate(const weft_file *file, uint64_t len);

/*
 Stores the attributes of the file.
 */
int weft_file_stat(const weft_file *file, weft_attributes *attributes);

/*
 Makes the file durable, and no other, as fsync(2) does.
 */
int weft_file_sync(const weft_file *file);

/*
 Closes the file and frees `file`, also if it fails. Nothing becomes durable by it.
 */
int weft_file_close(weft_file *file);

/*
 Makes a group of an opened volume. It takes changes that threads make by calls of this library.
 -EROFS: the volume is not open for writing.
 */
int weft_group_on_volume(const weft_volume *volume, weft_group **group);

/*
 As weft_group_on_volume(), of a kind (WEFT_GROUP_...). While an atomic group has changes and has not
 ended, syncs by others wait for that, up to 5 seconds; let no thread that is in one sync.
 -EOPNOTSUPP: an atomic group, and the volume has no journal, or too small a one, or
 (WEFT_GROUP_ABORTABLE) nothing can be undone on it; -EMFILE: more than 64 of these; -EINVAL: an unknown
 kind.
 */
int weft_group_on_volume_of_kind(const weft_volume *volume,
                                 uint32_t kind,
                                 weft_group **group);

/*
 Makes a group of the mount that the file or directory `path` of the host is on. It takes changes
 that threads make by system calls: write(2), rename(2) and the like, but not through mmap(2). Until
 it is closed it holds `path` open: the mount is in use.
 -ENOTTY: this is no volume that weft has mounted for writing.
 */
int weft_group_on_mount(const char *path, weft_group **group);

/*
 As weft_group_on_mount(), of a kind (WEFT_GROUP_...). fsync(2) of those who are in an atomic group does
 not wait: nothing is durable before its end.
 -EOPNOTSUPP: the volume has no journal, or too small a one, or (WEFT_GROUP_ABORTABLE) nothing can be
 undone on it; -EPERM: an atomic group, by neither root nor the user who runs the mount; -EINVAL: an
 unknown kind.
 */
int weft_group_on_mount_of_kind(const char *path,
                                uint32_t kind,
                                weft_group **group);

/*
 Makes `group` depend on `before`: no change of `group` is durable before all changes of `before` are.
 `before` takes no more changes from now on. -EBUSY: `group` takes changes already, or `before` is
 engaged; -EXDEV: they are of different volumes; -EDEADLK: they are the same.
 */
int weft_group_depend(const weft_group *group,
                      const weft_group *before);

/*
 Ends the dependencies of the group: it takes no more of them. The first engagement does it too.
 */
int weft_group_release(const weft_group *group);

/*
 Adds the changes that the calling thread makes from now on to the group, until
 weft_group_disengage() in this thread. A thread may be in several groups; to engage twice is to
 engage once. -EBUSY: another group depends on this one.
 */
int weft_group_engage(const weft_group *group);

/*
 Ends what weft_group_engage() has begun in this thread, if it has.
 */
int weft_group_disengage(const weft_group *group);

/*
 Gives a group of a mount a label, for people, which `weft order --list` shows: at most 63 bytes of UTF-8
 without control characters (-EINVAL). -EOPNOTSUPP: the group is one of a volume.
 */
int weft_group_set_label(const weft_group *group,
                         const char *label);

/*
 As weft_group_engage(), for a scope (WEFT_SCOPE_...), and with a meaning of fsync(2) to those who are
 engaged: WEFT_FSYNC_WAIT, WEFT_FSYNC_BARRIER, or a number of milliseconds from 1 to 65535, which is a
 barrier whose changes are durable within that time. -EOPNOTSUPP: the group is one of a volume, which
 takes WEFT_SCOPE_THREAD and WEFT_FSYNC_WAIT.
 */
int weft_group_engage_scope(const weft_group *group,
                            uint32_t scope,
                            uint32_t fsync);

/*
 Ends what weft_group_engage_scope() has begun for this thread or process, if it has.
 */
int weft_group_disengage_scope(const weft_group *group, uint32_t scope);

/*
 Adds the changes that are made by an open file of the mount to the group, and no others: `fd` is any
 descriptor of it, in any process, so long as one is open. `fsync` is as for weft_group_engage_scope(),
 for fsync(2) by this open file. Pages written through a mapping belong to the group at msync(2). Before
 another group is made to depend on this one, end it by weft_group_disengage_file().
 -EOPNOTSUPP: the mount is without the option open_files, or the group is one of a volume; -EINVAL: a
 directory; -EXDEV: a file of another mount.
 */
int weft_group_engage_file(const weft_group *group,
                           int fd,
                           uint32_t fsync);

/*
 Ends the engagement of an open file; `fd` is any descriptor of it.
 */
int weft_group_disengage_file(const weft_group *group, int fd);

/*
 Orders the changes of the group from now on after those until now.
 */
int weft_group_barrier(const weft_group *group);

/*
 Ends an atomic group: from now on a power cut leaves all of its changes, or none. Nothing is written,
 and it takes no more changes. Does nothing to other groups. In an atomic group a call that could change
 more blocks than it may fails with EFBIG, before it has changed anything.
 -EBUSY: it is engaged; -ETIMEDOUT: it was open for longer than 5 seconds while others waited for its end.
 Its changes are kept, but a power cut may have left a part of them; further calls of those who were in
 it failed with ETIMEDOUT.
 */
int weft_group_commit(const weft_group *group);

/*
 Undoes all changes of a group of WEFT_GROUP_ABORTABLE, and ends it and its engagements. The end of its
 process without weft_group_commit() does that, too; weft_group_close() keeps the changes.
 -EBUSY: others have changed what was changed here, too. Nothing is undone, and the group can still be
 committed. -EINVAL: the group has ended, or is of another kind. With another error a part could not be
 undone, and is kept.
 */
int weft_group_abort(const weft_group *group);

/*
 Returns the most blocks that an atomic group may still change: 0 if it has ended, took too long
 (ETIMEDOUT), or is not atomic.
 */
int64_t weft_group_blocks_left(const weft_group *group);

/*
 Stores at `fd` a new descriptor that polls readable (poll(2), epoll(7)) once the changes made in the
 group until now are durable, and what they depend on. Four bytes can be read then, whose values have no
 meaning. Nothing is written to the disk for it: that happens by age, or by a sync. It is at its end of
 file, with nothing to read, if the volume or the mount ends before. The caller closes it, by close(2);
 it is not inherited through execve(2). -1 is stored if the call fails.
 -EACCES: the mount is of another user, who is not root; -EMFILE: there are too many of them, 512 of a
 mount.
 */
int weft_group_tell_durable(const weft_group *group,
                            int *fd);

/*
 Waits until the changes of the group are durable, and what they depend on. Nothing else is written
 for it. An atomic group ends first, as by weft_group_commit(). The error of the disk, if it failed.
 */
int weft_group_sync(const weft_group *group);

/*
 Returns 1 if the changes of the group are durable, and what they depend on, else 0.
 */
int weft_group_is_durable(const weft_group *group);

/*
 Closes the group and frees `group`. The order of its changes stays, and an atomic one ends and keeps its
 changes. All threads that are engaged are disengaged.
 */
void weft_group_close(weft_group *group);

/*
 Makes a volume in `image`, of `size_bytes` or, with 0, of the whole file or device. A file that does
 not exist is made, one that is too short grows. `format` is "ext2", "ext3", "hfs" or "mfs"; `label`
 is the volume's name, or NULL; `flags` are 0 or WEFT_MKFS_FORCE. -EINVAL: the size or the label does
 not fit the format, or the image holds a file system and is not to be overwritten.
 */
int weft_mkfs(const char *image,
              const char *format,
              uint64_t size_bytes,
              const char *label,
              uint32_t flags);

/*
 Checks the volume in `source`, which must not be in use, and repairs it with WEFT_CHECK_REPAIR in
 `flags`. Returns 0 if no problem remains, 1 if some do. `report` may be NULL; else what was found is
 stored there, to be freed with weft_report_free().
 */
int weft_check(const char *source,
               uint32_t flags,
               weft_report **report);

/*
 Returns how many problems a check has found, those that were repaired too.
 */
int weft_report_count(const weft_report *report);

/*
 Stores problem number `index`, from 0 on, as one line of UTF-8. It belongs to the report, and is
 valid until that is freed. -ERANGE: there is no such problem.
 */
int weft_report_problem(const weft_report *report, int index, const char **problem);

/*
 Frees a report and its problems.
 */
void weft_report_free(weft_report *report);

/*
 Opens the volume in `source`: an image file or a block device, a partition in one
 ("disk.img?partition=2"), or a network disk ("nbd://host/").

 `flags` are 0 or WEFT_VOLUME_... `order` is the order of writes: "soft", "journal",
 "journal=ordered", "journal=full", "async"; NULL is the default of the volume. Permissions are not
 checked, as the image is the caller's; new files belong to the user of the process.
 */
int weft_volume_open(const char *source, uint32_t flags, const char *order, weft_volume **volume);

/*
 Makes everything durable, marks the volume clean, closes it and frees `volume`, also if it fails.
 */
int weft_volume_close(weft_volume *volume);

/*
 Makes all changes of the volume durable.
 */
int weft_volume_sync(const weft_volume *volume);

/*
 Returns 1 if the volume refuses changes, else 0.
 */
int weft_volume_is_read_only(const weft_volume *volume);

/*
 Stores the attributes of the file or directory at `path`. Symbolic links are followed.
 */
int weft_volume_stat(const weft_volume *volume, const char *path, weft_attributes *attributes);

/*
 As weft_volume_stat(), but of a symbolic link itself.
 */
int weft_volume_lstat(const weft_volume *volume, const char *path, weft_attributes *attributes);

/*
 Makes a directory with the permission bits `mode` (0755).
 */
int weft_volume_mkdir(const weft_volume *volume, const char *path, uint32_t mode);

/*
 Removes a name that is not that of a directory.
 */
int weft_volume_unlink(const weft_volume *volume, const char *path);

/*
 Removes an empty directory.
 */
int weft_volume_rmdir(const weft_volume *volume, const char *path);

/*
 Renames `path` to `new_path`, and replaces what that named before, as rename(2) does.
 */
int weft_volume_rename(const weft_volume *volume, const char *path, const char *new_path);

#ifdef __cplusplus
} // extern "C"
#endif // __cplusplus

#endif /* WEFT_H */
