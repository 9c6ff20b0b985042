/* Names, attributes, directories, extended attributes, locks: every call does what it says. */
#include "check.h"

static dap_session_t session;

static void fill(const char *path, const char *text)
{
    dap_file_t file;
    IS(dap_open(session, path, DAP_OPEN_WRITE | DAP_OPEN_CREATE | DAP_OPEN_TRUNCATE, 0640, &file), 0);
    IS(dap_pwrite(file, text, strlen(text), 0, 0), strlen(text));
    IS(dap_close(file), 0);
}

static void names(void)
{
    NEW(dap_stat_t, stat);
    char text[16];
    IS(dap_mkdir(session, "d", 0755), 0);
    IS(dap_mkdir(session, "d", 0755), -EEXIST);
    fill("d/a", "hello");
    IS(dap_stat(session, "d/a", 0, &stat), 0);
    IS(stat.bytes, 5);
    IS(stat.kind, DAP_KIND_FILE);
    IS(stat.mode, 0640);
    IS(stat.size, sizeof stat);
    TRUE(stat.modified.seconds > 1000000000 && stat.inode != 0);
    IS(dap_link(session, "d/a", "d/b"), 0);
    IS(dap_stat(session, "d/b", 0, &stat), 0);
    IS(stat.links, 2);
    IS(dap_rename(session, "d/b", "d/c", 0), 0);
    IS(dap_rename(session, "d/c", "d/a", DAP_RENAME_NOREPLACE), -EEXIST);
    fill("d/x", "other words");
    IS(dap_rename(session, "d/c", "d/x", DAP_RENAME_EXCHANGE), 0);
    IS(dap_stat(session, "d/c", 0, &stat), 0);
    IS(stat.bytes, 11);
    IS(dap_symlink(session, "a", "d/s"), 0);
    IS(dap_stat(session, "d/s", DAP_NOFOLLOW, &stat), 0);
    IS(stat.kind, DAP_KIND_SYMLINK);
    IS(dap_stat(session, "d/s", 0, &stat), 0);
    IS(stat.bytes, 5);
    IS(dap_readlink(session, "d/s", text, sizeof text), 1);
    IS(text[0], 'a');
    IS(dap_readlink(session, "d/a", text, sizeof text), -EINVAL);
    IS(dap_stat(session, "d/none", 0, &stat), -ENOENT);
    SAYS("d/none");
    IS(dap_stat(session, "d/a/b", 0, &stat), -ENOTDIR);
    IS(dap_remove(session, "d"), -EISDIR);
    IS(dap_rmdir(session, "d"), -ENOTEMPTY);
    IS(dap_access(session, "d/a", 6), 6);
    IS(dap_truncate(session, "d/a", 2), 0);
    IS(dap_stat(session, "d/a", 0, &stat), 0);
    IS(stat.bytes, 2);
    NEW(dap_statfs_t, space);
    IS(dap_statfs(session, "", &space), 0);
    TRUE(space.bytes_total > 0 && space.name_bytes_max >= 255);
    IS(space.read_only, 0);
}

static void attributes(void)
{
    NEW(dap_setattr_t, set);
    NEW(dap_stat_t, stat);
    set.set = DAP_SET_MODE | DAP_SET_MODIFIED | DAP_SET_ACCESSED_NOW;
    set.mode = 0600;
    set.modified.seconds = 1234567;
    set.modified.nanoseconds = 5;
    IS(dap_setattr(session, "d/a", 0, &set), 0);
    IS(dap_stat(session, "d/a", 0, &stat), 0);
    IS(stat.mode, 0600);
    IS(stat.modified.seconds, 1234567);
    IS(stat.modified.nanoseconds, 5);
    dap_file_t file;
    IS(dap_open(session, "d/a", DAP_OPEN_READ | DAP_OPEN_WRITE, 0, &file), 0);
    set.set = DAP_SET_SIZE;
    set.bytes = 100;
    IS(dap_fsetattr(file, &set), 0);
    IS(dap_fstat(file, &stat), 0);
    IS(stat.bytes, 100);
    IS(dap_ftruncate(file, 7), 0);
    IS(dap_fstat(file, &stat), 0);
    IS(stat.bytes, 7);
    IS(dap_close(file), 0);
}

static void directories(void)
{
    dap_dir_t dir;
    NEW(dap_dirent_t, entry);
    int found = 0, result;
    char name[32];
    IS(dap_mkdir(session, "many", 0700), 0);
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "many/file-%d", i);
        fill(name, "x");
    }
    IS(dap_opendir(session, "many", &dir), 0);
    while ((result = dap_readdir(dir, &entry)) == 1) {
        found++;
        IS(entry.name_bytes, strlen((char *)entry.name));
        IS(strncmp((char *)entry.name, "file-", 5), 0);
        IS(entry.kind, DAP_KIND_FILE);
        IS(entry.bytes, 1);
    }
    IS(result, 0);
    IS(found, 300);
    IS(dap_readdir(dir, &entry), 0);
    IS(dap_closedir(dir), 0);
    IS(dap_closedir(dir), -EBADF);
    IS(dap_opendir(session, "d/a", &dir), -ENOTDIR);

    const char *paths[] = {"many/file-1", "many/none", "d", "d/a/b"};
    int32_t results[4];
    IS(dap_exists(session, paths, 4, results), 2);
    IS(results[0], 0);
    IS(results[1], -ENOENT);
    IS(results[2], 0);
    IS(results[3], -ENOTDIR);
    IS(dap_exists(session, paths, 0, results), 0);
}

static void extended(void)
{
    char value[64];
    int result = dap_setxattr(session, "d/a", "user.one", "12345", 5, 0);
    if (result == -EOPNOTSUPP) {
        /* Where the served file system has none. */
        IS(dap_getxattr(session, "d/a", "user.one", value, sizeof value), -EOPNOTSUPP);
        return;
    }
    IS(result, 0);
    IS(dap_setxattr(session, "d/a", "user.one", "1", 1, DAP_XATTR_CREATE), -EEXIST);
    IS(dap_setxattr(session, "d/a", "user.two", "1", 1, DAP_XATTR_REPLACE), -ENODATA);
    IS(dap_getxattr(session, "d/a", "user.one", NULL, 0), 5);
    IS(dap_getxattr(session, "d/a", "user.one", value, sizeof value), 5);
    IS(memcmp(value, "12345", 5), 0);
    IS(dap_getxattr(session, "d/a", "user.one", value, 2), -ERANGE);
    IS(dap_listxattr(session, "d/a", value, sizeof value), 9);
    IS(strcmp(value, "user.one"), 0);
    IS(dap_removexattr(session, "d/a", "user.one"), 0);
    IS(dap_removexattr(session, "d/a", "user.one"), -ENODATA);
}

static void locks(void)
{
    dap_file_t file;
    IS(dap_open(session, "d/a", DAP_OPEN_READ | DAP_OPEN_WRITE, 0, &file), 0);
    NEW(dap_lock_t, lock);
    lock.kind = DAP_LOCK_OFD;
    lock.flags = DAP_LOCK_EXCLUSIVE;
    lock.owner = 1;
    lock.offset = 10;
    lock.length = 10;
    IS(dap_lock(file, &lock), 0);
    dap_lock_t other = lock;
    other.owner = 2;
    other.offset = 19;
    other.length = 0;
    IS(dap_lock(file, &other), -EAGAIN);
    IS(dap_test_lock(file, &other), 0);
    IS(other.kind, DAP_LOCK_OFD);
    IS(other.owner, 1);
    IS(other.offset, 10);
    IS(other.length, 10);
    IS(dap_unlock(file, &lock), 0);
    other = lock;
    other.owner = 2;
    IS(dap_test_lock(file, &other), 0);
    IS(other.kind, 0);
    other.kind = DAP_LOCK_OFD;
    other.flags = DAP_LOCK_EXCLUSIVE | DAP_LOCK_WAIT;
    IS(dap_lock(file, &other), 0);
    IS(dap_close(file), 0);
}

int main(int argc, char **argv)
{
    TRUE(argc == 2);
    IS(dap_session_open(argv[1], NULL, &session), 0);
    names();
    attributes();
    directories();
    extended();
    locks();
    IS(dap_remove(session, "d/a"), 0);
    IS(dap_session_sync(session), 0);
    IS(dap_session_close(session), 0);
    return done();
}
