/* What a program does wrong gets an error, not a crash: NULL, text that is no text, handles of a
 * closed volume, groups out of order, threads that end in a group. hostile DIR works in DIR. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <weft.h>

static int failed;

static void expect(int line, const char *what, long long got, long long wanted) {
    if (got == wanted) return;
    fprintf(stderr, "line %d: %s: %lld, not %lld: %s\n", line, what, got, wanted,
            weft_error_message());
    failed = 1;
}
#define EXPECT(call, wanted) expect(__LINE__, #call, call, wanted)
#define SAYS(text)                                                                                 \
    do {                                                                                           \
        if (strstr(weft_error_message(), text) == NULL) expect(__LINE__, text, 0, 1);              \
    } while (0)

struct turn {
    weft_volume *volume;
    weft_group *group;
    int number;
};

static void *in_a_thread(void *given) {
    struct turn *turn = given;
    char path[32];
    weft_file *file;
    weft_volume *none;
    snprintf(path, sizeof path, "/t%d", turn->number);
    EXPECT(weft_group_engage(turn->group), 0);
    EXPECT(weft_group_engage(turn->group), 0);
    EXPECT(weft_file_open(turn->volume, path, WEFT_FILE_WRITE | WEFT_FILE_CREATE, 0600, &file), 0);
    for (int at = 0; at < 100; at++) EXPECT(weft_file_write(file, path, sizeof path, at * 4096), 0);
    EXPECT(weft_file_close(file), 0);
    /* Each thread has a message of its own. */
    EXPECT(weft_volume_open(path, 0, NULL, &none), -ENOENT);
    SAYS(path);
    if (turn->number % 2 == 0) EXPECT(weft_group_disengage(turn->group), 0);
    return NULL; /* the others end in the group */
}

static void null_is_an_error(void) {
    weft_volume *volume = (void *)8;
    weft_attributes attributes;
    EXPECT(weft_volume_open(NULL, 0, NULL, &volume), -EINVAL);
    SAYS("source is NULL");
    EXPECT(volume == NULL, 1);
    EXPECT(weft_volume_open("x", 0, NULL, NULL), -EINVAL);
    EXPECT(weft_volume_open("\xff\xfe", 0, NULL, &volume), -EILSEQ);
    SAYS("not UTF-8");
    EXPECT(weft_volume_open("x", 1 << 20, NULL, &volume), -EINVAL);
    EXPECT(weft_volume_open("x", 0, "sideways", &volume), -EINVAL);
    SAYS("journal=ordered");
    EXPECT(weft_volume_close(NULL), 0);
    EXPECT(weft_volume_sync(NULL), -EINVAL);
    EXPECT(weft_volume_is_read_only(NULL), -EINVAL);
    EXPECT(weft_volume_stat(NULL, "/", &attributes), -EINVAL);
    EXPECT(weft_volume_lstat(NULL, "/", &attributes), -EINVAL);
    EXPECT(weft_volume_mkdir(NULL, "/", 0), -EINVAL);
    EXPECT(weft_volume_unlink(NULL, "/"), -EINVAL);
    EXPECT(weft_volume_rmdir(NULL, "/"), -EINVAL);
    EXPECT(weft_volume_rename(NULL, "/", "/"), -EINVAL);
    EXPECT(weft_file_open(NULL, "/", 0, 0, NULL), -EINVAL);
    EXPECT(weft_file_read(NULL, NULL, 0, 0), -EINVAL);
    EXPECT(weft_file_write(NULL, NULL, 0, 0), -EINVAL);
    EXPECT(weft_file_truncate(NULL, 0), -EINVAL);
    EXPECT(weft_file_stat(NULL, NULL), -EINVAL);
    EXPECT(weft_file_sync(NULL), -EINVAL);
    EXPECT(weft_file_close(NULL), 0);
    EXPECT(weft_dir_open(NULL, "/", NULL), -EINVAL);
    EXPECT(weft_dir_next(NULL, NULL), -EINVAL);
    weft_dir_close(NULL);
    EXPECT(weft_group_on_volume(NULL, NULL), -EINVAL);
    EXPECT(weft_group_on_mount(NULL, NULL), -EINVAL);
    EXPECT(weft_group_depend(NULL, NULL), -EINVAL);
    EXPECT(weft_group_release(NULL), -EINVAL);
    EXPECT(weft_group_engage(NULL), -EINVAL);
    EXPECT(weft_group_disengage(NULL), -EINVAL);
    EXPECT(weft_group_barrier(NULL), -EINVAL);
    EXPECT(weft_group_sync(NULL), -EINVAL);
    EXPECT(weft_group_is_durable(NULL), -EINVAL);
    weft_group_close(NULL);
    EXPECT(weft_mkfs(NULL, "ext2", 0, NULL, 0), -EINVAL);
    EXPECT(weft_mkfs("x", NULL, 0, NULL, 0), -EINVAL);
    EXPECT(weft_check(NULL, 0, NULL), -EINVAL);
    EXPECT(weft_report_count(NULL), -EINVAL);
    EXPECT(weft_report_problem(NULL, 0, NULL), -EINVAL);
    weft_report_free(NULL);
}

static void files(weft_volume *volume) {
    weft_file *file, *reader;
    weft_attributes attributes;
    weft_dir *dir;
    weft_entry entry;
    char buffer[8];
    int flags = WEFT_FILE_READ | WEFT_FILE_WRITE | WEFT_FILE_CREATE | WEFT_FILE_EXCLUSIVE;
    EXPECT(weft_file_open(volume, "/f", flags, 0644, &file), 0);
    EXPECT(weft_file_open(volume, "/f", flags, 0644, &reader), -EEXIST);
    EXPECT(weft_file_open(volume, "/f", 1 << 30, 0644, &reader), -EINVAL);
    EXPECT(weft_file_open(volume, "/g", flags, 0200000, &reader), -EINVAL);
    EXPECT(weft_file_open(volume, "/", WEFT_FILE_READ, 0, &reader), -EISDIR);
    EXPECT(weft_file_write(file, "12345", 5, 0), 0);
    EXPECT(weft_file_write(file, NULL, 5, 0), -EINVAL);
    EXPECT(weft_file_write(file, buffer, (size_t)-1, 0), -EINVAL);
    EXPECT(weft_file_write(file, "x", 1, UINT64_MAX), -EFBIG);
    EXPECT(weft_file_read(file, buffer, sizeof buffer, 1), 4);
    EXPECT(memcmp(buffer, "2345", 4), 0);
    EXPECT(weft_file_read(file, buffer, sizeof buffer, 1 << 20), 0);
    EXPECT(weft_file_read(file, NULL, 0, 0), 0);
    EXPECT(weft_file_read(file, NULL, 1, 0), -EINVAL);
    EXPECT(weft_file_truncate(file, 3), 0);
    EXPECT(weft_file_sync(file), 0);
    EXPECT(weft_file_stat(file, &attributes), 0);
    EXPECT(attributes.size_bytes, 3);
    EXPECT(S_ISREG(attributes.mode), 1);
    EXPECT(attributes.mode & 07777, 0644);
    EXPECT(weft_file_open(volume, "/f", WEFT_FILE_READ, 0, &reader), 0);
    EXPECT(weft_file_write(reader, "x", 1, 0), -EBADF);
    EXPECT(weft_volume_mkdir(volume, "/d", 0700), 0);
    EXPECT(weft_volume_unlink(volume, "/d"), -EISDIR);
    EXPECT(weft_volume_rmdir(volume, "/f"), -ENOTDIR);
    EXPECT(weft_volume_rename(volume, "/f", "/d/f2"), 0);
    EXPECT(weft_volume_rmdir(volume, "/d"), -ENOTEMPTY);
    EXPECT(weft_volume_stat(volume, "/f", &attributes), -ENOENT);
    SAYS("/f");
    EXPECT(weft_volume_stat(volume, "/d/f2", NULL), -EINVAL);
    EXPECT(weft_dir_open(volume, "/d", &dir), 0);
    EXPECT(weft_dir_next(dir, &entry), 1);
    EXPECT(strcmp(entry.name, "f2"), 0);
    EXPECT(entry.ino, attributes.ino == 0 ? 0 : entry.ino);
    EXPECT(weft_dir_next(dir, &entry), 0);
    weft_dir_close(dir);
    /* An open file stays readable without a name. */
    EXPECT(weft_volume_unlink(volume, "/d/f2"), 0);
    EXPECT(weft_file_read(reader, buffer, sizeof buffer, 0), 3);
    EXPECT(weft_file_close(reader), 0);
    EXPECT(weft_file_close(file), 0);
    EXPECT(weft_volume_rmdir(volume, "/d"), 0);
}

static void groups(weft_volume *volume, const char *dir) {
    weft_group *first, *second, *elsewhere;
    EXPECT(weft_group_on_volume(volume, &first), 0);
    EXPECT(weft_group_on_volume(volume, &second), 0);
    EXPECT(weft_group_depend(first, first), -EDEADLK);
    EXPECT(weft_group_depend(first, NULL), -EINVAL);
    EXPECT(weft_group_engage(first), 0);
    EXPECT(weft_group_depend(second, first), -EBUSY);
    EXPECT(weft_group_barrier(first), 0);
    EXPECT(weft_group_disengage(first), 0);
    EXPECT(weft_group_disengage(first), 0);
    EXPECT(weft_group_depend(second, first), 0);
    EXPECT(weft_group_engage(first), -EBUSY);
    SAYS("depend on this one");
    EXPECT(weft_group_release(second), 0);
    EXPECT(weft_group_depend(second, first), -EBUSY);
    weft_group_close(first);
    EXPECT(weft_group_on_mount(dir, &elsewhere), -ENOTTY);
    EXPECT(elsewhere == NULL, 1);
    EXPECT(weft_group_on_mount("/there/is/nothing", &elsewhere), -ENOENT);

    pthread_t threads[4];
    struct turn turns[4];
    for (int i = 0; i < 4; i++) {
        turns[i] = (struct turn){volume, second, i};
        pthread_create(&threads[i], NULL, in_a_thread, &turns[i]);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    EXPECT(weft_group_is_durable(second), 0);
    EXPECT(weft_group_sync(second), 0);
    EXPECT(weft_group_is_durable(second), 1);
    weft_group_close(second);
}

int main(int argc, char **argv) {
    char image[4096];
    weft_volume *volume, *again;
    weft_file *file;
    weft_group *group;
    weft_report *report;
    const char *problem;
    if (argc != 2) return 2;
    snprintf(image, sizeof image, "%s/v.img", argv[1]);
    EXPECT(weft_error_message()[0], 0);
    null_is_an_error();

    EXPECT(weft_mkfs(image, "ntfs", 16 << 20, NULL, 0), -EINVAL);
    EXPECT(weft_mkfs(image, "ext3", 16 << 20, "this label is much too long", 0), -EINVAL);
    EXPECT(weft_mkfs(image, "hfs", 16 << 20, "a:b", 0), -EINVAL);
    EXPECT(weft_mkfs(image, "hfs", 16 << 20, "Mac", 0), 0);
    EXPECT(weft_mkfs(image, "ext2", 16 << 20, NULL, 0), -EINVAL);
    EXPECT(weft_mkfs(image, "ext2", 16 << 20, NULL, WEFT_MKFS_FORCE), 0);
    EXPECT(weft_volume_open(image, 0, "journal", &volume), -EINVAL);
    EXPECT(weft_mkfs(image, "ext3", 16 << 20, "label", WEFT_MKFS_FORCE), 0);
    EXPECT(weft_volume_open(image, 0, "journal", &volume), 0);
    EXPECT(weft_volume_open(image, 0, NULL, &again), -EBUSY);
    EXPECT(weft_volume_is_read_only(volume), 0);
    files(volume);
    groups(volume, argv[1]);

    /* What is open when the volume is closed is closed with it. */
    EXPECT(weft_group_on_volume(volume, &group), 0);
    EXPECT(weft_group_engage(group), 0);
    EXPECT(weft_file_open(volume, "/left", WEFT_FILE_WRITE | WEFT_FILE_CREATE, 0644, &file), 0);
    EXPECT(weft_volume_close(volume), 0);
    EXPECT(weft_file_write(file, "x", 1, 0), -EBADF);
    EXPECT(weft_group_sync(group), -EBADF);
    SAYS("closed");
    EXPECT(weft_check(image, 0, NULL), 0); /* nothing holds the image any more */
    EXPECT(weft_file_close(file), -EBADF);
    weft_group_close(group);

    EXPECT(weft_volume_open(image, WEFT_VOLUME_READ_ONLY, NULL, &volume), 0);
    EXPECT(weft_volume_is_read_only(volume), 1);
    EXPECT(weft_volume_mkdir(volume, "/d", 0755), -EROFS);
    EXPECT(weft_group_on_volume(volume, &group), -EROFS);
    EXPECT(weft_volume_close(volume), 0);

    EXPECT(weft_check(image, 0, &report), 0);
    EXPECT(weft_report_count(report), 0);
    EXPECT(weft_report_problem(report, 0, &problem), -ERANGE);
    weft_report_free(report);
    FILE *damage = fopen(image, "r+b");
    fseek(damage, 1024 + 12, SEEK_SET); /* the number of free blocks, in the superblock */
    fwrite("\1\0\0\0", 1, 4, damage);
    fclose(damage);
    EXPECT(weft_check(image, 0, &report), 1);
    EXPECT(weft_report_count(report) > 0, 1);
    EXPECT(weft_report_problem(report, 0, &problem), 0);
    EXPECT(strlen(problem) > 0, 1);
    weft_report_free(report);
    EXPECT(weft_check(image, WEFT_CHECK_REPAIR, &report), 0);
    EXPECT(weft_report_count(report) > 0, 1);
    weft_report_free(report);
    EXPECT(weft_check(image, 0, NULL), 0);
    puts(failed ? "failed" : "all as expected");
    return failed;
}
