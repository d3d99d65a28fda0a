/* A program that forks: the handles belong to the parent. In the child every call fails with EBADF, writes
 * nothing and prints nothing, and the parent loses nothing. fork DIR works in DIR. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft.h>

enum { FILES = 40, BYTES = 65536 };

static int failed;

static void expect(int line, const char *what, long long got, long long wanted) {
    if (got == wanted) return;
    fprintf(stderr, "line %d: %s: %lld, not %lld: %s\n", line, what, got, wanted,
            weft_error_message());
    failed = 1;
}
#define EXPECT(call, wanted) expect(__LINE__, #call, call, wanted)

static void write_file(weft_volume *volume, const char *path, char value) {
    static char content[BYTES];
    weft_file *file;
    memset(content, value, sizeof content);
    EXPECT(weft_file_open(volume, path, WEFT_FILE_WRITE | WEFT_FILE_CREATE, 0600, &file), 0);
    EXPECT(weft_file_write(file, content, sizeof content, 0), 0);
    EXPECT(weft_file_close(file), 0);
}

static void write_all(weft_volume *volume) {
    char path[32];
    for (int n = 0; n < FILES; n++) {
        snprintf(path, sizeof path, "/parent%d", n);
        write_file(volume, path, (char)n);
    }
    EXPECT(weft_volume_sync(volume), 0);
}

/* What a child can do wrong; it ends as programs do. */
static void misuse(weft_volume *volume, weft_file *file, weft_group *group) {
    char byte = 0;
    weft_file *other;
    weft_group *more;
    weft_attributes attributes;
    EXPECT(weft_volume_mkdir(volume, "/child", 0755), -EBADF);
    if (strstr(weft_error_message(), "after a fork") == NULL) EXPECT(0, 1);
    EXPECT(weft_volume_stat(volume, "/", &attributes), -EBADF);
    EXPECT(weft_file_open(volume, "/child", WEFT_FILE_WRITE | WEFT_FILE_CREATE, 0600, &other), -EBADF);
    EXPECT(weft_file_write(file, &byte, 1, 0), -EBADF);
    EXPECT(weft_file_sync(file), -EBADF);
    EXPECT(weft_group_on_volume(volume, &more), -EBADF);
    EXPECT(weft_group_engage(group), -EBADF);
    EXPECT(weft_group_sync(group), -EBADF);
    EXPECT(weft_volume_sync(volume), -EBADF);
    EXPECT(weft_file_close(file), -EBADF);
    weft_group_close(group);
    EXPECT(weft_volume_close(volume), -EBADF);
}

static void in_turn(const char *image, int child_first) {
    weft_volume *volume;
    weft_file *file;
    weft_group *group;
    int status;
    pid_t child;
    EXPECT(weft_mkfs(image, "ext3", 64 << 20, "", 1), 0);
    EXPECT(weft_volume_open(image, 0, NULL, &volume), 0);
    write_file(volume, "/before", 'b');
    EXPECT(weft_volume_sync(volume), 0);
    EXPECT(weft_file_open(volume, "/before", WEFT_FILE_WRITE, 0, &file), 0);
    EXPECT(weft_group_on_volume(volume, &group), 0);
    EXPECT(weft_group_engage(group), 0);
    if (!child_first) write_all(volume);
    child = fork();
    if (child == 0) {
        misuse(volume, file, group);
        exit(failed);
    }
    if (child_first) EXPECT(waitpid(child, &status, 0), child);
    if (child_first) write_all(volume);
    if (!child_first) EXPECT(waitpid(child, &status, 0), child);
    EXPECT(status, 0);
    EXPECT(weft_group_disengage(group), 0);
    weft_group_close(group);
    EXPECT(weft_file_close(file), 0);
    EXPECT(weft_volume_close(volume), 0);

    EXPECT(weft_volume_open(image, WEFT_VOLUME_READ_ONLY, NULL, &volume), 0);
    for (int n = 0; n < FILES; n++) {
        char path[32], first = -1;
        snprintf(path, sizeof path, "/parent%d", n);
        EXPECT(weft_file_open(volume, path, WEFT_FILE_READ, 0, &file), 0);
        EXPECT(weft_file_read(file, &first, 1, BYTES - 1), 1);
        EXPECT(first, n);
        EXPECT(weft_file_close(file), 0);
    }
    EXPECT(weft_volume_close(volume), 0);
}

static atomic_int stop;

static void *writes(void *volume) {
    while (!stop) {
        write_file(volume, "/busy", 'z');
        EXPECT(weft_volume_sync(volume), 0);
    }
    return NULL;
}

/* A child of a process whose threads hold locks, as a server has them: none of its calls waits. */
static void while_others_write(const char *image) {
    weft_volume *volume;
    weft_file *file;
    weft_group *group;
    pthread_t writer;
    EXPECT(weft_mkfs(image, "ext2", 64 << 20, "", 1), 0);
    EXPECT(weft_volume_open(image, 0, NULL, &volume), 0);
    write_file(volume, "/before", 'b');
    EXPECT(weft_file_open(volume, "/before", WEFT_FILE_WRITE, 0, &file), 0);
    EXPECT(weft_group_on_volume(volume, &group), 0);
    EXPECT(pthread_create(&writer, NULL, writes, volume), 0);
    for (int n = 0; n < 50; n++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            misuse(volume, file, group);
            exit(failed);
        }
        EXPECT(waitpid(child, &status, 0), child);
        EXPECT(status, 0);
    }
    stop = 1;
    EXPECT(pthread_join(writer, NULL), 0);
    weft_group_close(group);
    EXPECT(weft_file_close(file), 0);
    EXPECT(weft_volume_close(volume), 0);
}

int main(int count, char **arguments) {
    if (count != 2 || chdir(arguments[1]) != 0) return 2;
    in_turn("a.img", 1);
    in_turn("b.img", 0);
    while_others_write("c.img");
    if (failed) return 1;
    puts("all as expected");
    return 0;
}
