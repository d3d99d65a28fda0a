/*
 * Moves a mail from one mailbox to another so that no power cut loses it, and waits for the disk
 * once, at the end:
 *
 *     cc order.c -o order $(pkg-config --cflags --libs weft)
 *     ./order v.img          makes an ext2 volume in v.img and works in it
 *     ./order --on DIR       works in a directory of a mount of weft, by ordinary system calls
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <weft.h>

static const char MAIL[] = "From: ann\n\nThe mail.\n";

/* Ends the program if a call has failed, with what the library says about it. */
static int must(int result) {
    if (result < 0) {
        fprintf(stderr, "order: %s: %s\n", strerror(-result), weft_error_message());
        exit(1);
    }
    return result;
}

static void must_host(int result, const char *what) {
    if (result < 0) {
        perror(what);
        exit(1);
    }
}

/* Writes a mailbox of the volume. */
static void store(weft_volume *volume, const char *path, const char *text) {
    weft_file *file;
    must(weft_file_open(volume, path, WEFT_FILE_WRITE | WEFT_FILE_CREATE | WEFT_FILE_TRUNCATE, 0644,
                        &file));
    must(weft_file_write(file, text, strlen(text), 0));
    must(weft_file_close(file));
}

/* Writes a file of the mount. */
static void store_on_mount(const char *dir, const char *name, const char *text) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    must_host(fd, path);
    must_host(write(fd, text, strlen(text)) < 0 ? -1 : 0, path);
    must_host(close(fd), path);
}

/* The move: the removal must never be durable before the copy. Both groups are engaged in turn. */
static void move(weft_volume *volume, const char *dir) {
    weft_group *copied, *removed;
    if (volume != NULL) {
        must(weft_group_on_volume(volume, &copied));
        must(weft_group_on_volume(volume, &removed));
    } else {
        must(weft_group_on_mount(dir, &copied));
        must(weft_group_on_mount(dir, &removed));
    }

    must(weft_group_engage(copied));
    if (volume != NULL)
        store(volume, "/mail/new", MAIL);
    else
        store_on_mount(dir, "new", MAIL);
    must(weft_group_disengage(copied));

    must(weft_group_depend(removed, copied));
    must(weft_group_engage(removed));
    if (volume != NULL)
        must(weft_volume_unlink(volume, "/mail/old"));
    else
        store_on_mount(dir, "old", "");
    must(weft_group_disengage(removed));

    must(weft_group_sync(removed));
    printf("durable: %s\n", must(weft_group_is_durable(copied)) ? "yes" : "no");
    weft_group_close(copied);
    weft_group_close(removed);
}

static void list(weft_volume *volume, const char *path) {
    weft_dir *dir;
    weft_entry entry;
    must(weft_dir_open(volume, path, &dir));
    while (must(weft_dir_next(dir, &entry)) == 1) {
        char full[4096];
        weft_attributes attributes;
        snprintf(full, sizeof full, "%s/%s", path, entry.name);
        must(weft_volume_stat(volume, full, &attributes));
        printf("%s %s, %llu bytes\n", S_ISDIR(entry.mode) ? "directory" : "file", full,
               (unsigned long long)attributes.size_bytes);
    }
    weft_dir_close(dir);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--on") == 0) {
        store_on_mount(argv[2], "old", MAIL);
        move(NULL, argv[2]);
        return 0;
    }
    if (argc != 2) {
        fprintf(stderr, "usage: order IMAGE, or order --on DIR\n");
        return 2;
    }

    const char *image = argv[1];
    must(weft_mkfs(image, "ext2", 16 << 20, "mail", 0));

    weft_volume *volume;
    must(weft_volume_open(image, 0, "soft", &volume));
    must(weft_volume_mkdir(volume, "/mail", 0755));
    store(volume, "/mail/old", MAIL);
    must(weft_volume_sync(volume));
    move(volume, NULL);
    must(weft_volume_close(volume)); /* durable, and marked clean */

    must(weft_volume_open(image, WEFT_VOLUME_READ_ONLY, NULL, &volume));
    list(volume, "/mail");
    weft_file *file;
    char text[64] = "";
    must(weft_file_open(volume, "/mail/new", WEFT_FILE_READ, 0, &file));
    long long got = weft_file_read(file, text, sizeof text - 1, 0);
    must(got < 0 ? (int)got : 0);
    must(weft_file_close(file));
    printf("%s", text);

    weft_file *missing;
    int error = weft_file_open(volume, "/mail/old", WEFT_FILE_READ, 0, &missing);
    printf("%s: %s\n", strerror(-error), weft_error_message());
    must(weft_volume_close(volume));

    printf("check: %s\n", must(weft_check(image, 0, NULL)) ? "problems remain" : "sound");
    return 0;
}
