/* Sessions, groups and processes that end or fork while something is under way. */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include "check.h"

static const char *url;
static dap_session_t session;
static dap_file_t file;
/* Under valgrind everything takes long: fewer rounds. */
static int few;

static void count_result(void *context, const dap_result_t *result)
{
    (*(atomic_long *)context)++;
    TRUE(result->value == -ECANCELED || result->value == 4096);
}

/* When a session was closed with operations under way, its memory is the program's again. */
static void abandoned(void)
{
    enum { MANY = 6000 };
    static char bytes[1 << 16];
    static dap_op_t ops[MANY];
    for (int how = 0; how < 3; how++) {
        dap_session_t second;
        dap_file_t of;
        dap_mem_t own;
        dap_cg_t group;
        atomic_long told = 0;
        IS(dap_session_open(url, NULL, &second), 0);
        IS(dap_open(second, "data", DAP_OPEN_READ, 0, &of), 0);
        IS(dap_register_mem(second, bytes, sizeof bytes, &own), 0);
        IS(dap_cg_create(second, MANY, &group), 0);
        if (how == 1)
            IS(dap_cg_callback(group, count_result, &told), 0);
        if (how == 2)
            TRUE(dap_cg_descriptor(group) >= 0);
        for (int i = 0; i < MANY; i++) {
            memset(&ops[i], 0, sizeof ops[i]);
            ops[i].size = sizeof ops[i];
            ops[i].op = DAP_OP_READ;
            ops[i].file = of;
            ops[i].mem = own;
            ops[i].length = 4096;
        }
        IS(dap_submit(group, ops, MANY, 0), MANY);
        IS(dap_session_close(second), 0);
        if (how == 1)
            IS(told, MANY);
        IS(dap_deregister_mem(own), 0);
    }
}

struct closing {
    dap_session_t session;
    dap_cg_t group;
    dap_op_t op;
    atomic_int told, ends;
};

static void submit_and_close(void *context, const dap_result_t *result)
{
    struct closing *closing = context;
    NEW(dap_result_t, none);
    int told = ++closing->told;
    IS(dap_wait(closing->group, result->request, -1, &none), told > 10 ? -EBADF : -EBUSY);
    IS(dap_cg_destroy(closing->group), told > 10 ? -EBADF : -EDEADLK);
    if (told < 10) {
        IS(result->value, 100);
        IS(dap_submit(closing->group, &closing->op, 1, 0), 1);
    } else if (told == 10) {
        IS(dap_submit(closing->group, &closing->op, 1, DAP_SUBMIT_MORE), 1);
        IS(dap_session_close(closing->session), 0);
        IS(dap_session_close(closing->session), -EBADF);
        IS(dap_submit(closing->group, &closing->op, 1, 0), -EBADF);
        IS(dap_mem_free(closing->op.mem), 0);
    } else {
        TRUE(result->value == 100 || result->value == -ECANCELED);
        closing->ends++;
    }
}

/* A callback submits, and closes its own session: what is under way ends, and is told. */
static void closing_callback(void)
{
    static struct closing closing;
    void *address;
    IS(dap_session_open(url, NULL, &closing.session), 0);
    IS(dap_open(closing.session, "data", DAP_OPEN_READ, 0, &closing.op.file), 0);
    IS(dap_mem_alloc(closing.session, 4096, &address, &closing.op.mem), 0);
    IS(dap_cg_create(closing.session, 4, &closing.group), 0);
    IS(dap_cg_callback(closing.group, submit_and_close, &closing), 0);
    closing.op.size = sizeof closing.op;
    closing.op.op = DAP_OP_READ;
    closing.op.length = 100;
    IS(dap_submit(closing.group, &closing.op, 1, 0), 1);
    while (closing.ends < 1)
        sched_yield();
}

static void never(void *context, const dap_result_t *result)
{
    (void)context;
    (void)result;
    abort();
}

/* A group that got no thread gets one when it is asked for again. */
static void no_thread(void)
{
    struct rlimit was, none;
    dap_cg_t group;
    IS(dap_cg_create(session, 5, &group), 0);
    IS(getrlimit(RLIMIT_AS, &was), 0);
    none = was;
    none.rlim_cur = 4096;
    /* What is small is still there. */
    void *room = malloc(64 << 10);
    TRUE(room != NULL);
    free(room);
    IS(setrlimit(RLIMIT_AS, &none), 0);
    int64_t descriptor = dap_cg_descriptor(group);
    IS(setrlimit(RLIMIT_AS, &was), 0);
    TRUE(descriptor == -EAGAIN || descriptor >= 0);
    descriptor = dap_cg_descriptor(group);
    TRUE(descriptor >= 0);
    NEW(dap_op_t, op);
    NEW(dap_result_t, result);
    op.op = DAP_OP_FDATASYNC;
    op.file = file;
    IS(dap_submit(group, &op, 1, 0), 1);
    struct pollfd wanted = {.fd = (int)descriptor, .events = POLLIN};
    IS(poll(&wanted, 1, 60000), 1);
    IS(dap_cg_wait(group, &result, 1, 0, 0), 1);
    IS(dap_cg_callback(group, never, NULL), -EBUSY);
    IS(dap_cg_destroy(group), 0);
}

static dap_cg_t raced;
static dap_session_t racing;
static atomic_int go;

static void *submitter(void *context)
{
    dap_file_t of = *(dap_file_t *)context;
    NEW(dap_op_t, op);
    op.op = DAP_OP_FDATASYNC;
    op.file = of;
    NEW(dap_result_t, result);
    long begun = 0;
    for (;;) {
        int64_t answer = dap_submit(raced, &op, 1, 0);
        go = 1;
        if (answer == -EBADF)
            return (void *)begun;
        TRUE(answer == 1 || answer == -EAGAIN);
        begun += answer == 1;
        int32_t ended = dap_wait(raced, op.request, 60000, &result);
        TRUE(ended == 1 || ended == -EBADF || ended == -ENOENT);
    }
}

/* Groups are destroyed, and sessions closed, while others submit to them. */
static void races(void)
{
    for (int round = 0; round < (few ? 2 : 6); round++) {
        dap_file_t of;
        pthread_t threads[2];
        IS(dap_session_open(url, NULL, &racing), 0);
        IS(dap_open(racing, "data", DAP_OPEN_READ | DAP_OPEN_WRITE, 0, &of), 0);
        IS(dap_cg_create(racing, 4, &raced), 0);
        go = 0;
        for (int i = 0; i < 2; i++)
            IS(pthread_create(&threads[i], NULL, submitter, &of), 0);
        while (!go)
            sched_yield();
        if (round % 2) {
            int result;
            while ((result = dap_cg_destroy(raced)) == -EBUSY)
                sched_yield();
            IS(result, 0);
        }
        IS(dap_session_close(racing), 0);
        for (int i = 0; i < 2; i++)
            IS(pthread_join(threads[i], NULL), 0);
    }
}

struct forking {
    pthread_mutex_t lock;
    pthread_cond_t more;
    pid_t child;
    int told;
};

static void fork_once(void *context, const dap_result_t *result)
{
    struct forking *forking = context;
    (void)result;
    pthread_mutex_lock(&forking->lock);
    if (forking->told == 0 && (forking->child = fork()) == 0) {
        alarm(60);
        IS(dap_session_ping(session, NULL), -ECHILD);
        return;
    }
    forking->told++;
    pthread_cond_signal(&forking->more);
    pthread_mutex_unlock(&forking->lock);
}

/* A callback that forks: the child does not go on with its parent's group. */
static void forking_callback(void)
{
    static struct forking forking = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                     .more = PTHREAD_COND_INITIALIZER};
    dap_cg_t group;
    NEW(dap_op_t, op);
    op.op = DAP_OP_FDATASYNC;
    op.file = file;
    IS(dap_cg_create(session, 5, &group), 0);
    IS(dap_cg_callback(group, fork_once, &forking), 0);
    for (int round = 1; round <= 3; round++) {
        IS(dap_submit(group, &op, 1, 0), 1);
        pthread_mutex_lock(&forking.lock);
        while (forking.told < round)
            pthread_cond_wait(&forking.more, &forking.lock);
        pthread_mutex_unlock(&forking.lock);
        if (round == 1)
            TRUE(child_is_good(forking.child));
    }
    IS(dap_cg_destroy(group), 0);
}

static volatile int stop_reading;

static void *reader(void *context)
{
    char text[4096];
    (void)context;
    while (!stop_reading)
        IS(dap_pread(file, text, sizeof text, 0), 4096);
    return NULL;
}

/* A child of a process with open sessions, forked while another thread is in a call. */
static void forks(void)
{
    pthread_t thread;
    IS(pthread_create(&thread, NULL, reader, NULL), 0);
    for (int i = 0; i < (few ? 2 : 8); i++) {
        pid_t child = fork();
        if (child == 0) {
            char text[4096];
            alarm(60);
            IS(dap_pread(file, text, 4, 0), -ECHILD);
            SAYS("open a session of its own");
            IS(dap_session_ping(session, NULL), -ECHILD);
            IS(dap_close(file), -ECHILD);
            IS(dap_session_close(session), -ECHILD);
            dap_session_t own;
            dap_file_t own_file;
            IS(dap_session_open(url, NULL, &own), 0);
            IS(dap_open(own, "data", DAP_OPEN_READ, 0, &own_file), 0);
            IS(dap_pread(own_file, text, sizeof text, 0), 4096);
            pid_t grandchild = fork();
            if (grandchild == 0) {
                alarm(60);
                IS(dap_pread(own_file, text, 4, 0), -ECHILD);
                IS(dap_pread(file, text, 4, 0), -ECHILD);
                _exit(0);
            }
            TRUE(child_is_good(grandchild));
            IS(dap_session_close(own), 0);
            _exit(0);
        }
        TRUE(child_is_good(child));
    }
    stop_reading = 1;
    IS(pthread_join(thread, NULL), 0);
    IS(dap_session_ping(session, NULL), 0);
}

static pthread_key_t cleaned;
static int cleanings;

static void clean(void *context)
{
    char text[4096];
    dap_file_t other;
    (void)context;
    IS(dap_pread(file, text, sizeof text, 0), 4096);
    IS(dap_pread(file, text, 4, 1LL << 40), 0);
    IS(dap_open(session, "cleaned", DAP_OPEN_WRITE | DAP_OPEN_CREATE, 0600, &other), 0);
    IS(dap_pwrite(other, text, 10, 0, 0), 10);
    IS(dap_append(other, text, 10, NULL), 10);
    IS(dap_fsync(other), 0);
    IS(dap_close(other), 0);
    IS(dap_pread(other, text, 4, 0), -EBADF);
    cleanings++;
}

static void clean_at_exit(void)
{
    clean(NULL);
    IS(dap_close(file), 0);
    IS(dap_session_close(session), 0);
    _exit(0);
}

static void *cleaner(void *context)
{
    char text[4096];
    /* Often, so that some are read without the server, where it allows it. */
    for (int i = 0; i < 50; i++)
        IS(dap_pread(file, text, sizeof text, 0), 4096);
    IS(pthread_setspecific(cleaned, context), 0);
    return NULL;
}

/* Calls in handlers of the very end, of a thread and of a process. */
static void at_the_end(void)
{
    pthread_t thread;
    IS(pthread_key_create(&cleaned, clean), 0);
    IS(pthread_create(&thread, NULL, cleaner, &cleaned), 0);
    IS(pthread_join(thread, NULL), 0);
    IS(cleanings, 1);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        IS(dap_session_open(url, NULL, &session), 0);
        IS(dap_open(session, "data", DAP_OPEN_READ, 0, &file), 0);
        cleaner(NULL);
        /* Not before this: a check that fails ends the program, too. */
        IS(atexit(clean_at_exit), 0);
        exit(2);
    }
    TRUE(child_is_good(child));
}

int main(int argc, char **argv)
{
    TRUE(argc == 2 || argc == 3);
    few = argc == 3;
    url = argv[1];
    static char bytes[8192];
    IS(dap_session_open(url, NULL, &session), 0);
    IS(dap_open(session, "data", DAP_OPEN_READ | DAP_OPEN_WRITE | DAP_OPEN_CREATE, 0600, &file), 0);
    IS(dap_pwrite(file, bytes, sizeof bytes, 0, 0), sizeof bytes);
    if (!few)
        no_thread();
    abandoned();
    closing_callback();
    races();
    forking_callback();
    forks();
    at_the_end();
    IS(dap_close(file), 0);
    IS(dap_session_close(session), 0);
    return done();
}
