// A client of XRootD, for compare.sh: xrootd URL read FILE SIZE DEPTH SECONDS, or xrootd URL create DIR COUNT.
// Prints operations, seconds, and processor seconds of its own.
#include <XrdCl/XrdClFile.hh>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <sys/resource.h>
#include <vector>

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static double cpu() {
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void check(const XrdCl::XRootDStatus &status, const std::string &what) {
    if (status.IsOK()) return;
    fprintf(stderr, "%s: %s\n", what.c_str(), status.ToString().c_str());
    exit(1);
}

// One of the reads under way: asks again when it is answered.
struct Reader : XrdCl::ResponseHandler {
    static XrdCl::File file;
    static uint64_t blocks, done;
    static uint32_t size;
    static int busy;
    static double end;
    static std::mutex mutex;
    static std::condition_variable idle;
    std::vector<char> buffer = std::vector<char>(size);
    std::mt19937_64 random;

    explicit Reader(int seed) : random(seed) {}

    void ask() { check(file.Read(random() % blocks * size, size, buffer.data(), this), "read"); }

    void HandleResponse(XrdCl::XRootDStatus *status, XrdCl::AnyObject *response) override {
        check(*status, "read");
        delete status;
        delete response;
        {
            std::lock_guard<std::mutex> lock(mutex);
            done++;
            if (now() >= end) {
                if (--busy == 0) idle.notify_all();
                return;
            }
        }
        ask();
    }
};

XrdCl::File Reader::file;
uint64_t Reader::blocks, Reader::done;
uint32_t Reader::size;
int Reader::busy;
double Reader::end;
std::mutex Reader::mutex;
std::condition_variable Reader::idle;

static void read_all(const std::string &url, char **args) {
    XrdCl::StatInfo *info = nullptr;
    Reader::size = atoi(args[1]);
    Reader::busy = atoi(args[2]);
    check(Reader::file.Open(url + args[0], XrdCl::OpenFlags::Read), "open");
    check(Reader::file.Stat(true, info), "stat");
    Reader::blocks = info->GetSize() / Reader::size;
    Reader::end = now() + atof(args[3]);
    std::vector<Reader *> readers;
    for (int seed = Reader::busy; seed > 0; seed--) readers.push_back(new Reader(seed));
    for (auto reader : readers) reader->ask();
    std::unique_lock<std::mutex> lock(Reader::mutex);
    Reader::idle.wait(lock, [] { return Reader::busy == 0; });
}

static void create(const std::string &url, char **args) {
    static char data[2048];
    for (int i = 0; i < atoi(args[1]); i++) {
        XrdCl::File file;
        std::string name = url + args[0] + "/" + std::to_string(i);
        check(file.Open(name, XrdCl::OpenFlags::New | XrdCl::OpenFlags::Write), name);
        check(file.Write(0, sizeof data, data), name);
        check(file.Close(), name);
        Reader::done++;
    }
}

int main(int argc, char **argv) {
    if (argc < 5) return fprintf(stderr, "usage: xrootd URL read FILE SIZE DEPTH SECONDS\n"), 2;
    double start = now(), used = cpu();
    if (!strcmp(argv[2], "read")) read_all(argv[1], argv + 3); else create(argv[1], argv + 3);
    printf("%llu %.3f %.3f\n", (unsigned long long)Reader::done, now() - start, cpu() - used);
    fflush(stdout);
    _exit(0);
}
