/* Kinds of groups, on a mount and in process: all or nothing, undone; and being told that one is durable. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <weft.h>

static int failed;

#define EXPECT(call, expected) expect(__LINE__, #call, (call), (expected))

static void expect(int line, const char *call, long long got, long long expected) {
    if (got == expected) return;
    printf("line %d: %s = %lld, not %lld (%s)\n", line, call, got, expected, weft_error_message());
    failed = 1;
}

static char directory[4000];

static const char *at(const char *name) {
    static char paths[4][4096];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

static void put(const char *name, const char *content) {
    int fd = open(at(name), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    EXPECT(write(fd, content, strlen(content)), (long long)strlen(content));
    EXPECT(close(fd), 0);
}

static int has(const char *name, const char *content) {
    char got[64] = "";
    int fd = open(at(name), O_RDONLY);
    if (fd < 0) return 0;
    long len = read(fd, got, sizeof got - 1);
    close(fd);
    return len >= 0 && strcmp(got, content) == 0;
}

static int readable(int fd, int within_ms) {
    struct pollfd polled = {fd, POLLIN, 0};
    return poll(&polled, 1, within_ms) == 1;
}

static void *put_by_another(void *content) {
    put("m/f", content);
    return NULL;
}

/* The content and the names are as before, or as changed. */
static void changes(void) {
    put("m/f", "new, and longer");
    EXPECT(rename(at("m/old"), at("m/renamed")), 0);
    EXPECT(unlink(at("m/gone")), 0);
    EXPECT(mkdir(at("m/made"), 0755), 0);
}

static void is_as(int changed) {
    EXPECT(has("m/f", changed ? "new, and longer" : "before"), 1);
    EXPECT(has("m/renamed", "old"), changed);
    EXPECT(has("m/old", "old"), !changed);
    EXPECT(has("m/gone", "gone"), !changed);
    EXPECT(access(at("m/made"), F_OK), changed ? 0 : -1);
}

static void on_a_mount(void) {
    weft_group *group, *other;
    pthread_t thread;
    char bytes[8];
    int fd = 0;
    put("m/f", "before");
    put("m/old", "old");
    put("m/gone", "gone");

    EXPECT(weft_group_on_mount_of_kind(at("m"), WEFT_GROUP_ABORTABLE, &group), 0);
    EXPECT(weft_group_blocks_left(group) > 0, 1);
    EXPECT(weft_group_engage(group), 0);
    changes();
    is_as(1);
    EXPECT(weft_group_commit(group), -EBUSY); /* it is engaged */
    EXPECT(weft_group_abort(group), 0);
    is_as(0);
    EXPECT(weft_group_blocks_left(group), 0);
    EXPECT(weft_group_abort(group), -EINVAL); /* it has ended */
    put("m/after", "in no group");
    weft_group_close(group);

    EXPECT(weft_group_on_mount_of_kind(at("m"), WEFT_GROUP_ABORTABLE, &group), 0);
    EXPECT(weft_group_engage(group), 0);
    changes();
    EXPECT(pthread_create(&thread, NULL, put_by_another, "new, and longer"), 0);
    pthread_join(thread, NULL);
    EXPECT(weft_group_disengage(group), 0);
    EXPECT(weft_group_abort(group), -EBUSY); /* shared */
    is_as(1);
    EXPECT(weft_group_commit(group), 0);
    EXPECT(weft_group_tell_durable(group, &fd), 0);
    EXPECT(readable(fd, 0), 0);
    EXPECT(weft_group_sync(group), 0);
    EXPECT(readable(fd, 60000), 1);
    EXPECT(read(fd, bytes, sizeof bytes), 4);
    EXPECT(close(fd), 0);
    EXPECT(weft_group_engage(group), -EBUSY);
    weft_group_close(group);

    EXPECT(weft_group_on_mount_of_kind(at("m"), WEFT_GROUP_ATOMIC, &group), 0);
    EXPECT(weft_group_blocks_left(group) > 0, 1);
    EXPECT(weft_group_abort(group), -EINVAL);
    EXPECT(weft_group_commit(group), 0);
    weft_group_close(group);
    EXPECT(weft_group_on_mount_of_kind(at("m"), WEFT_GROUP_LINEAR, &group), 0);
    EXPECT(weft_group_commit(group), 0);
    EXPECT(weft_group_engage(group), 0);
    EXPECT(weft_group_disengage(group), 0);
    EXPECT(weft_group_on_mount_of_kind(at("m"), 4, &other), -EINVAL);
    EXPECT(other == NULL, 1);
    EXPECT(weft_group_tell_durable(group, NULL), -EINVAL);
    EXPECT(weft_group_tell_durable(NULL, &fd), -EINVAL);
    EXPECT(weft_group_commit(NULL), -EINVAL);
    EXPECT(weft_group_abort(NULL), -EINVAL);
    EXPECT(weft_group_blocks_left(NULL), -EINVAL);
    weft_group_close(group);
}

static void in_process(void) {
    weft_group *group;
    weft_volume *volume;
    weft_file *file;
    char image[4096], bytes[8];
    int fd = 0, unread = 0;
    snprintf(image, sizeof image, "%s/other.img", directory);
    EXPECT(weft_mkfs(image, "ext3", 64 << 20, NULL, 0), 0);
    EXPECT(weft_volume_open(image, 0, "journal", &volume), 0);
    EXPECT(weft_group_on_volume_of_kind(volume, WEFT_GROUP_ABORTABLE, &group), -EOPNOTSUPP);
    EXPECT(group == NULL, 1); /* its journal is too small */
    EXPECT(weft_group_on_volume_of_kind(volume, 4, &group), -EINVAL);
    EXPECT(weft_group_on_volume_of_kind(volume, WEFT_GROUP_ATOMIC, &group), 0);
    EXPECT(weft_group_engage(group), 0);
    EXPECT(weft_file_open(volume, "/f", WEFT_FILE_WRITE | WEFT_FILE_CREATE, 0644, &file), 0);
    EXPECT(weft_file_write(file, "42\n", 3, 0), 0);
    EXPECT(weft_file_close(file), 0);
    EXPECT(weft_group_disengage(group), 0);
    EXPECT(weft_group_abort(group), -EINVAL); /* of another kind */
    EXPECT(weft_group_blocks_left(group) > 0, 1);
    EXPECT(weft_group_commit(group), 0);
    EXPECT(weft_group_tell_durable(group, &fd), 0);
    EXPECT(weft_group_tell_durable(group, &unread), 0);
    EXPECT(close(unread), 0); /* that nobody reads it is no SIGPIPE */
    EXPECT(readable(fd, 0), 0);
    EXPECT(weft_group_sync(group), 0);
    EXPECT(readable(fd, 60000), 1);
    EXPECT(read(fd, bytes, sizeof bytes), 4);
    EXPECT(close(fd), 0);
    EXPECT(weft_volume_close(volume), 0);
    EXPECT(weft_group_tell_durable(group, &fd), -EBADF);
    EXPECT(fd, -1);
    weft_group_close(group);

    EXPECT(weft_mkfs(image, "ext3", 128 << 20, NULL, 1), 0);
    EXPECT(weft_volume_open(image, 0, "journal", &volume), 0);
    EXPECT(weft_group_on_volume_of_kind(volume, WEFT_GROUP_ABORTABLE, &group), 0);
    EXPECT(weft_group_engage(group), 0);
    EXPECT(weft_file_open(volume, "/f", WEFT_FILE_WRITE | WEFT_FILE_CREATE, 0644, &file), 0);
    EXPECT(weft_file_close(file), 0);
    EXPECT(weft_group_abort(group), 0);
    EXPECT(weft_group_abort(group), -EINVAL); /* it has ended */
    EXPECT(weft_file_open(volume, "/f", WEFT_FILE_READ, 0, &file), -ENOENT);
    weft_group_close(group);
    EXPECT(weft_volume_close(volume), 0);

    EXPECT(weft_mkfs(image, "ext2", 16 << 20, NULL, 1), 0);
    EXPECT(weft_volume_open(image, 0, "soft", &volume), 0);
    EXPECT(weft_group_on_volume_of_kind(volume, WEFT_GROUP_ATOMIC, &group), -EOPNOTSUPP);
    EXPECT(weft_group_on_volume_of_kind(volume, WEFT_GROUP_LINEAR, &group), 0);
    weft_group_close(group);
    EXPECT(weft_volume_close(volume), 0);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    snprintf(directory, sizeof directory, "%s", argv[1]);
    on_a_mount();
    in_process();
    puts(failed ? "failed" : "all as expected");
    return failed;
}
