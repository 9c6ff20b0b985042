/* Wrong use: the right errno, words that say what to do, and no hang. */
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

static const char *url, *tree;
static dap_session_t session;
static dap_file_t file;
/* Under valgrind everything takes long: fewer rounds. */
static int few;

static void urls(void)
{
    dap_session_t none = 77;
    IS(dap_session_open(NULL, NULL, &none), -EINVAL);
    SAYS("url is a null pointer");
    IS(dap_session_open(url, NULL, NULL), -EINVAL);
    IS(dap_session_open("http://host/", NULL, &none), -EINVAL);
    SAYS("must begin with dafs://");
    IS(dap_session_open("dafs://host/?colour=red", NULL, &none), -EINVAL);
    SAYS("unknown option 'colour'");
    IS(dap_session_open("dafs+nowhere://host/", NULL, &none), -EINVAL);
    char gone[256];
    snprintf(gone, sizeof gone, "dafs+unix://%s/nobody//", tree);
    int result = dap_session_open(gone, NULL, &none);
    TRUE(result == -ECONNREFUSED || result == -ENOTCONN);
    SAYS("dafs serve");
    NEW(dap_options_t, options);
    options.size = 4;
    IS(dap_session_open(url, &options, &none), -EINVAL);
    SAYS("sizeof");
    options.size = sizeof options;
    options.flags = 0x80000000;
    IS(dap_session_open(url, &options, &none), -EINVAL);
    SAYS("unknown flags 0x80000000");
    options.flags = 0;
    options.credits = 100000;
    IS(dap_session_open(url, &options, &none), -EINVAL);
    SAYS("credits");
    options.credits = 0;
    options.wait = 9;
    IS(dap_session_open(url, &options, &none), -EINVAL);
    options.wait = 0;
    options.export_name = "no such export";
    IS(dap_session_open(url, &options, &none), -ENOENT);
    IS(none, 77);
    /* Of a later version: what it asks for beyond is not 0. */
    struct {
        dap_options_t options;
        uint64_t more;
    } later;
    memset(&later, 0, sizeof later);
    later.options.size = sizeof later;
    IS(dap_session_open(url, &later.options, &none), 0);
    IS(dap_session_close(none), 0);
    later.more = 1;
    IS(dap_session_open(url, &later.options, &none), -E2BIG);
    /* Words that do not fit are cut, and how many there are is told. */
    char few[8];
    TRUE(dap_error_message(few, sizeof few) > 8);
    IS(strlen(few), 7);
    /* Whatever is said of the room, no more is touched than the words need. */
    char all[512];
    IS(dap_error_message(all, SIZE_MAX), strlen(all));
    IS(dap_error_message(NULL, SIZE_MAX), strlen(all));
    IS(dap_error_message(all, 0), strlen(all));
    /* What is no text is not read as another one. */
    snprintf(gone, sizeof gone, "%s\xff", url);
    IS(dap_session_open(gone, NULL, &none), -EINVAL);
    SAYS("not UTF-8");
}

static void arguments(void)
{
    char text[16] = "";
    dap_file_t none;
    dap_mem_t mem;
    void *address;
    NEW(dap_stat_t, stat);
    IS(dap_open(session, NULL, DAP_OPEN_READ, 0, &none), -EINVAL);
    IS(dap_open(session, "data", DAP_OPEN_READ, 0, NULL), -EINVAL);
    IS(dap_open(session, "data", 0, 0, &none), -EINVAL);
    IS(dap_open(session, "data", 0x1000 | DAP_OPEN_READ, 0, &none), -EINVAL);
    IS(dap_open(session, "data", DAP_OPEN_READ | DAP_OPEN_EXCLUSIVE, 0, &none), -EINVAL);
    IS(dap_open(session, "data", DAP_OPEN_READ, 010000, &none), -EINVAL);
    IS(dap_stat(session, "data", 2, &stat), -EINVAL);
    IS(dap_stat(session, "data", 0, NULL), -EINVAL);
    stat.size = 3;
    IS(dap_stat(session, "data", 0, &stat), -EINVAL);
    IS(dap_pread(file, NULL, 5, 0), -EINVAL);
    SAYS("buffer is a null pointer");
    IS(dap_pread(file, text, 5, INT64_MAX), -EFBIG);
    IS(dap_pread(file, text, SIZE_MAX, 0), -EFBIG);
    IS(dap_pread(file, text, 5, UINT64_MAX), -EFBIG);
    IS(dap_pwrite(file, text, 5, INT64_MAX - 2, 0), -EFBIG);
    IS(dap_pwrite(file, text, 5, 0, 8), -EINVAL);
    IS(dap_ftruncate(file, UINT64_MAX), -EFBIG);
    IS(dap_rename(session, "a", "b", 3), -EINVAL);
    IS(dap_readv(file, NULL, 1), -EINVAL);
    union {
        uint64_t numbers[16];
        char text[128];
    } odd;
    memset(&odd, 0, sizeof odd);
    void *uneven = odd.text + 1;
    IS(dap_readv(file, uneven, 1), -EINVAL);
    SAYS("segments is not aligned");
    IS(dap_exists(session, uneven, 1, (int32_t *)odd.numbers), -EINVAL);
    SAYS("paths is not aligned");
    const char *name = "data";
    IS(dap_exists(session, &name, 1, uneven), -EINVAL);
    SAYS("results is not aligned");
    IS(dap_exists(session, NULL, 1, NULL), -EINVAL);
    IS(dap_register_mem(session, NULL, 5, &mem), -EINVAL);
    IS(dap_register_mem(session, text, 0, &mem), -EINVAL);
    IS(dap_register_mem(session, text, SIZE_MAX, &mem), -EFBIG);
    IS(dap_mem_alloc(session, 0, &address, &mem), -EINVAL);
    IS(dap_mem_alloc(session, 5, NULL, &mem), -EINVAL);
    NEW(dap_lock_t, lock);
    IS(dap_lock(file, &lock), -EINVAL);
    lock.kind = DAP_LOCK_POSIX;
    lock.offset = UINT64_MAX;
    lock.length = 2;
    IS(dap_lock(file, &lock), -EFBIG);
    NEW(dap_op_t, op);
    op.file = file;
    op.op = 99;
    IS(dap_submit(0, &op, 1, 0), -EINVAL);
    op.op = DAP_OP_READ;
    op.length = 5;
    op.mem = 12345;
    IS(dap_submit(0, &op, 1, 0), -EBADF);
    IS(dap_submit(0, NULL, 1, 0), -EINVAL);
    IS(dap_submit(0, &op, 1, 2), -EINVAL);
}

/* What a second operation says of its size is not believed: there is nothing behind it. */
static void sizes(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, flags, -1, 0);
    TRUE(pages != MAP_FAILED);
    IS(mprotect(pages + page, page, PROT_NONE), 0);
    dap_op_t *two = (dap_op_t *)(pages + page) - 2;
    dap_cg_t group;
    NEW(dap_result_t, result);
    IS(dap_cg_default(session, &group), 0);
    const uint32_t wrong[] = {0, sizeof *two - 4, sizeof *two + 8, 4096, UINT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        two[0].size = sizeof *two;
        two[0].op = DAP_OP_FDATASYNC;
        two[0].file = file;
        two[1] = two[0];
        two[1].size = wrong[i];
        IS(dap_submit(0, two, 2, 0), 1);
        IS(dap_wait(group, two[0].request, -1, &result), 1);
    }
    IS(munmap(pages, 2 * page), 0);
}

static void handles(void)
{
    char text[4];
    dap_file_t other;
    const dap_session_t foreign[] = {0, 1, 0xdeadbeef, UINT64_MAX, INT64_MAX};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        IS(dap_session_close(foreign[i]), -EBADF);
        IS(dap_close(foreign[i]), -EBADF);
        IS(dap_pread(foreign[i], text, 1, 0), -EBADF);
        IS(dap_mem_free(foreign[i]), -EBADF);
        IS(dap_cg_destroy(foreign[i]), -EBADF);
        IS(dap_closedir(foreign[i]), -EBADF);
    }
    /* One kind for another. */
    IS(dap_pread(session, text, 1, 0), -EBADF);
    IS(dap_session_close(file), -EBADF);
    IS(dap_open(session, "data", DAP_OPEN_READ, 0, &other), 0);
    IS(dap_close(other), 0);
    IS(dap_close(other), -EBADF);
    SAYS("was closed");
    IS(dap_pread(other, text, 1, 0), -EBADF);
    /* The place is used again, the number is not. */
    dap_file_t next;
    IS(dap_open(session, "data", DAP_OPEN_READ, 0, &next), 0);
    TRUE(next != other);
    IS(dap_close(other), -EBADF);
    IS(dap_close(next), 0);
    /* What is in a session goes with it. */
    dap_session_t second;
    dap_cg_t group;
    IS(dap_session_open(url, NULL, &second), 0);
    IS(dap_open(second, "data", DAP_OPEN_READ, 0, &other), 0);
    IS(dap_cg_create(second, 5, &group), 0);
    NEW(dap_op_t, op);
    op.op = DAP_OP_FSYNC;
    op.file = file;
    IS(dap_submit(group, &op, 1, 0), -EXDEV);
    IS(dap_session_close(second), 0);
    IS(dap_session_close(second), -EBADF);
    IS(dap_pread(other, text, 1, 0), -EBADF);
    IS(dap_cg_under_way(group), -EBADF);
}

static void in_flight(void)
{
    void *address;
    dap_mem_t mem, own;
    static char bytes[1 << 20];
    static dap_op_t ops[500];
    static dap_result_t results[500];
    results[0].size = sizeof results[0];
    dap_cg_t group;
    IS(dap_cg_create(session, 500, &group), 0);
    IS(dap_mem_alloc(session, 1 << 20, &address, &mem), 0);
    IS(dap_register_mem(session, bytes, sizeof bytes, &own), 0);
    for (int i = 0; i < 500; i++) {
        memset(&ops[i], 0, sizeof ops[i]);
        ops[i].size = sizeof ops[i];
        ops[i].op = DAP_OP_READ;
        ops[i].file = file;
        ops[i].mem = i % 2 ? mem : own;
        ops[i].length = 4096;
    }
    IS(dap_submit(group, ops, 500, DAP_SUBMIT_MORE), 500);
    IS(dap_cg_destroy(group), -EBUSY);
    for (int left = 500; left > 0;) {
        int64_t count = dap_cg_wait(group, results, 500, 1, -1);
        TRUE(count > 0);
        left -= (int)count;
    }
    IS(dap_mem_free(mem), 0);
    IS(dap_deregister_mem(own), 0);
    IS(dap_cg_destroy(group), 0);
}

static volatile int stop_reading;

static volatile sig_atomic_t signals;

static void count_signal(int number)
{
    (void)number;
    signals++;
}

static void *signaller(void *context)
{
    pthread_t whom = *(pthread_t *)context;
    while (!stop_reading) {
        pthread_kill(whom, SIGUSR1);
        sched_yield();
    }
    return NULL;
}

/* A signal does not end a call. */
static void interrupts(void)
{
    struct sigaction action = {.sa_handler = count_signal};
    pthread_t thread, self = pthread_self();
    char text[4096];
    IS(sigaction(SIGUSR1, &action, NULL), 0);
    stop_reading = 0;
    IS(pthread_create(&thread, NULL, signaller, &self), 0);
    for (int i = 0; i < (few ? 100 : 2000) || signals < (few ? 5 : 100); i++)
        IS(dap_pread(file, text, sizeof text, 0), 4096);
    IS(dap_fsync(file), 0);
    stop_reading = 1;
    IS(pthread_join(thread, NULL), 0);
}

/* Somebody without rights, where this program may become one. */
static void rights(void)
{
    if (geteuid() != 0)
        return;
    pid_t child = fork();
    if (child == 0) {
        dap_session_t own;
        dap_file_t none;
        alarm(60);
        IS(setgroups(0, NULL), 0);
        IS(setresgid(65534, 65534, 65534), 0);
        IS(setresuid(65534, 65534, 65534), 0);
        IS(dap_session_open(url, NULL, &own), 0);
        IS(dap_open(own, "data", DAP_OPEN_READ, 0, &none), -EACCES);
        SAYS("'data': permission denied; ask the owner");
        IS(dap_session_close(own), 0);
        _exit(0);
    }
    TRUE(child_is_good(child));
}

int main(int argc, char **argv)
{
    TRUE(argc == 3 || argc == 4);
    few = argc == 4;
    url = argv[1];
    tree = argv[2];
    static char bytes[8192];
    IS(dap_session_open(url, NULL, &session), 0);
    IS(dap_open(session, "data", DAP_OPEN_READ | DAP_OPEN_WRITE | DAP_OPEN_CREATE, 0600, &file), 0);
    IS(dap_pwrite(file, bytes, sizeof bytes, 0, 0), sizeof bytes);
    urls();
    arguments();
    sizes();
    handles();
    in_flight();
    interrupts();
    rights();
    IS(dap_close(file), 0);
    IS(dap_session_close(session), 0);
    return done();
}
