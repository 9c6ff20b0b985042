/* A server that ends: calls fail in time, with the right errno. Prints "ready", and waits for a line. */
#include "check.h"

int main(int argc, char **argv)
{
    TRUE(argc == 2);
    dap_session_t session;
    dap_file_t file;
    dap_mem_t mem;
    void *address;
    char text[16] = "";
    NEW(dap_options_t, options);
    options.retry_ms = 300;
    IS(dap_session_open(argv[1], &options, &session), 0);
    IS(dap_open(session, "dead", DAP_OPEN_READ | DAP_OPEN_WRITE | DAP_OPEN_CREATE, 0600, &file), 0);
    IS(dap_mem_alloc(session, 4096, &address, &mem), 0);
    IS(dap_pwrite(file, "kept", 4, 0, 0), 4);
    IS(dap_fsync(file), 0);
    puts("ready");
    fflush(stdout);
    TRUE(fgets(text, sizeof text, stdin));
    int64_t answer = dap_pread(file, text, 4, 0);
    TRUE(answer == -ENOTCONN || answer == -ECONNREFUSED);
    SAYS("cannot connect");
    NEW(dap_op_t, op);
    NEW(dap_result_t, result);
    dap_cg_t group;
    op.op = DAP_OP_READ;
    op.file = file;
    op.mem = mem;
    op.length = 4;
    IS(dap_cg_default(session, &group), 0);
    IS(dap_submit(0, &op, 1, 0), 1);
    IS(dap_wait(group, op.request, -1, &result), 1);
    TRUE(result.value == -ENOTCONN || result.value == -ECONNREFUSED);
    IS(dap_mem_free(mem), 0);
    TRUE(dap_close(file) < 0);
    IS(dap_close(file), -EBADF);
    IS(dap_session_close(session), 0);
    return done();
}
