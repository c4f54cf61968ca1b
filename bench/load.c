/* A load generator: N keep-alive connections, each sends its next request after the last response.
 *
 *   load --port P --connections N --call FILE... [--hello FILE]... [--warm S] [--seconds S] [--least N]
 *        [--longest S] [--calls N] [--expect TEXT] [--any-id]
 *
 * A file contains one complete HTTP/1.1 request. Every 1000000000 in it, and in --expect, is replaced by a number that
 * is unique per request. The --hello files are sent first, once per connection (the legacy initialization). A session
 * id in a response is sent with all following requests. Several --call files are assigned to the connections in turn. A
 * response is correct if its status is 200 and it has the id of its request (unless --any-id), the expected text, and no
 * error. A run exceeds --seconds until --least correct responses have arrived, but never --longest. Prints `begin` when
 * the measured time starts, and one line of JSON at its end.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MARK "1000000000"
enum { DIGITS = 10, HELLOS = 4, CALLS = 256, EVENTS = 256, READ_ROOM = 1 << 17, FILE_ROOM = 1 << 16, MAX_ERRORS = 10000 };
static const double HELLO_SECONDS = 60, GOODBYE_SECONDS = 3;

typedef struct {
    int fd, step;           /* current request: a hello, or `hellos` for the call */
    const char *call;
    unsigned long number;   /* id of the current request */
    double begun;
    char session[300];
    char *request;
    size_t size, sent;
    char *answer;
    size_t used, room;
} Connection;

/* State of the current response. */
typedef struct { int status; size_t head; long length; bool chunked, closes; size_t end; } Frame;

static int port, connections = 1, hellos, kinds, epoll;
static double warm = 0.5, seconds = 2, longest = 20;
static unsigned long least, max_calls, number = 1000000000UL;
static char *files[HELLOS], *calls[CALLS], *expected = "";
static bool any_id;

static unsigned long good, bad, hello_errors, answered, reconnects;
static unsigned long long body_bytes;
static char first_error[400];

/* ---- latencies: 32 buckets for each doubling, so the error is at most 3 % ---- */

static unsigned long buckets[64 * 32];
static double slowest;

static int bucket_of(double ns) {
    unsigned long value = ns < 32 ? 32 : (unsigned long)ns;
    int power = 63 - __builtin_clzl(value);
    return power * 32 + (int)((value >> (power - 5)) & 31);
}

static double percentile_ms(double share) {
    unsigned long wanted = (unsigned long)(good * share), seen = 0;
    for (int i = 0; i < 64 * 32; i++)
        if ((seen += buckets[i]) > wanted) return (1UL << (i / 32)) * (1 + (i % 32 + 0.5) / 32) / 1e6;
    return slowest * 1e3;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* ---- requests ---- */

static char *read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, FILE_ROOM);
    if (!file || !fread(text, 1, FILE_ROOM - 1, file)) { perror(path); exit(2); }
    fclose(file);
    return text;
}

static void put_number(char *text, unsigned long value) {
    char digits[24];
    snprintf(digits, sizeof digits, "%010lu", value);
    for (char *p = text; (p = strstr(p, MARK)); p += DIGITS) memcpy(p, digits, DIGITS);
}

/* Build the request of this step, with the session header after the first line. The marks stay in place. */
static void prepare(Connection *c) {
    const char *file = c->step < hellos ? files[c->step] : c->call, *rest = strstr(file, "\r\n") + 2;
    free(c->request);
    c->size = asprintf(&c->request, "%.*s%s%s", (int)(rest - file), file, c->session, rest);
}

static void fail(const char *what, size_t size) {
    bad++;
    if (*first_error) return;
    if (size > sizeof first_error - 1) size = sizeof first_error - 1;
    for (size_t i = 0; i < size; i++) first_error[i] = (signed char)what[i] < ' ' || what[i] == '"' || what[i] == '\\' ? ' ' : what[i];
}

static void fail_answer(Connection *c, Frame *frame) {
    char text[sizeof first_error];
    snprintf(text, sizeof text, "%d: %.*s", frame->status, (int)(frame->end - frame->head), c->answer + frame->head);
    fail(text, strlen(text));
}

static void send_more(Connection *c) {
    while (c->sent < c->size) {
        ssize_t sent = send(c->fd, c->request + c->sent, c->size - c->sent, MSG_NOSIGNAL);
        if (sent < 0) return; /* EAGAIN: requests are small; a broken connection is detected by the next read */
        c->sent += sent;
    }
}

static void send_next(Connection *c) {
    unsigned long old = c->number;
    char digits[24];
    c->number = ++number;
    c->sent = c->used = 0;
    /* The last request's number has replaced the marks. */
    snprintf(digits, sizeof digits, "%010lu", old ? old : 1000000000UL);
    char fresh[24];
    snprintf(fresh, sizeof fresh, "%010lu", c->number);
    for (char *p = c->request; (p = strstr(p, digits)); p += DIGITS) memcpy(p, fresh, DIGITS);
    c->begun = now();
    send_more(c);
}

static void take_step(Connection *c, int step) {
    c->step = step;
    c->number = 0;
    prepare(c);
    send_next(c);
}

static void dial(Connection *c) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->fd, (void *)&to, sizeof to)) { perror("load: connect"); exit(2); }
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event);
}

static void dial_again(Connection *c) {
    close(c->fd);
    if (++reconnects > MAX_ERRORS) return;
    dial(c);
}

/* ---- responses ---- */

static bool read_head(Connection *c, Frame *frame) {
    char *blank = memmem(c->answer, c->used, "\r\n\r\n", 4);
    if (!blank) return false;
    *frame = (Frame){.status = atoi(c->answer + 9), .head = blank - c->answer + 4, .length = -1};
    for (char *line = c->answer; line < blank; line = (char *)memmem(line, blank + 2 - line, "\r\n", 2) + 2) {
        if (!strncasecmp(line, "content-length:", 15)) frame->length = atol(line + 15);
        if (!strncasecmp(line, "transfer-encoding:", 18)) frame->chunked = true;
        if (!strncasecmp(line, "connection: close", 17)) frame->closes = true;
        if (!strncasecmp(line, "mcp-session-id:", 15) && c->step < hellos)
            snprintf(c->session, sizeof c->session, "%.*s\r\n", (int)(strchr(line, '\r') - line), line);
    }
    if ((frame->status == 202 || frame->status == 204) && !frame->chunked && frame->length < 0) frame->length = 0;
    return true;
}

/* Return true if the response is complete. A response without a length ends with its connection. */
static bool is_whole(Connection *c, Frame *frame, bool closed) {
    if (!read_head(c, frame)) return false;
    frame->end = c->used;
    if (!frame->chunked) return frame->length < 0 ? closed : c->used >= frame->head + frame->length;
    for (size_t at = frame->head;;) {
        char *line = memmem(c->answer + at, c->used - at, "\r\n", 2);
        if (!line) return false;
        size_t size = strtoul(c->answer + at, NULL, 16);
        at = line - c->answer + 2 + size + 2;
        if (at > c->used) return false;
        if (!size) return true;
    }
}

static bool has(const char *body, size_t size, const char *text) { return memmem(body, size, text, strlen(text)) != NULL; }

static bool is_good(Connection *c, Frame *frame) {
    const char *body = c->answer + frame->head;
    size_t size = frame->end - frame->head, edge = size < 600 ? size : 600;
    char text[256], id[40], spaced[40];
    snprintf(text, sizeof text, "%s", expected);
    put_number(text, c->number);
    snprintf(id, sizeof id, "\"id\":%lu", c->number);
    snprintf(spaced, sizeof spaced, "\"id\": %lu", c->number);
    /* An id or an error is near one end of a response, so the middle of 100 kB is not searched. */
    bool wrong = has(body, edge, "\"error\":") || has(body, edge, "\"isError\":true") || has(body, edge, "\"isError\": true")
              || has(body + size - edge, edge, "\"isError\":true") || has(body + size - edge, edge, "\"isError\": true");
    const char *tail = body + size - edge;
    bool named = any_id || has(body, edge, id) || has(tail, edge, id) || has(body, edge, spaced) || has(tail, edge, spaced);
    return frame->status == 200 && !wrong && named && has(body, size, text);
}

static void count(Connection *c, Frame *frame, double begin) {
    double at = now(), took = at - c->begun;
    answered++;
    if (!is_good(c, frame)) { fail_answer(c, frame); return; }
    if (at < begin) return;
    good++;
    body_bytes += frame->end - frame->head;
    buckets[bucket_of(took * 1e9)]++;
    if (took > slowest) slowest = took;
}

/* Read available data. Return true if the response is complete, or can never be because the connection closed. */
static bool receive(Connection *c, Frame *frame, bool *closed) {
    if (c->room - c->used < READ_ROOM) c->answer = realloc(c->answer, c->room = c->room * 2 + READ_ROOM);
    ssize_t got = recv(c->fd, c->answer + c->used, c->room - c->used, 0);
    if (got < 0 && errno == EAGAIN) return false;
    *closed = got <= 0;
    if (got > 0) c->used += got;
    send_more(c);
    return is_whole(c, frame, *closed) || *closed;
}

/* ---- a run: initialization, then measurement ---- */

static Connection *wait_for_answer(struct epoll_event *event, Frame *frame, bool *closed) {
    Connection *c = event->data.ptr;
    *closed = false;
    return receive(c, frame, closed) ? c : NULL;
}

static int say_hello(Connection *all) {
    struct epoll_event events[EVENTS];
    Frame frame;
    bool closed;
    double end = now() + HELLO_SECONDS;
    int open = 0;
    for (int i = 0; i < connections; i++) take_step(&all[i], 0);
    while (open < connections && now() < end && !hello_errors) {
        int ready = epoll_wait(epoll, events, EVENTS, 100);
        for (int i = 0; i < ready; i++) {
            Connection *c = wait_for_answer(&events[i], &frame, &closed);
            if (!c) continue;
            if (frame.status != 200 && frame.status != 202) { hello_errors++; fail(c->answer, c->used); }
            if (closed || frame.closes) dial_again(c);
            if (c->step + 1 == hellos) open++;
            else take_step(c, c->step + 1);
        }
    }
    return open == connections;
}

static double measure(Connection *all) {
    struct epoll_event events[EVENTS];
    Frame frame;
    bool closed, started = false;
    double begin = now() + warm, end = begin + seconds, last = begin;
    for (int i = 0; i < connections; i++) take_step(&all[i], hellos);
    while ((now() < end || (good < least && now() < begin + longest)) && bad < MAX_ERRORS
           && reconnects < MAX_ERRORS && !(max_calls && answered >= max_calls)) {
        if (!started && now() >= begin) { puts("begin"); fflush(stdout); started = true; }
        int ready = epoll_wait(epoll, events, EVENTS, started ? 50 : 1);
        for (int i = 0; i < ready; i++) {
            Connection *c = wait_for_answer(&events[i], &frame, &closed);
            if (!c) continue;
            if (closed && !is_whole(c, &frame, true)) fail("closed before the response was complete", 39);
            else count(c, &frame, begin);
            last = now();
            if (closed || frame.closes) dial_again(c);
            send_next(c);
        }
    }
    return max_calls ? last - begin : now() - begin;
}

/* Delete the sessions; some gateways would otherwise keep one server process per session. */
static void say_goodbye(Connection *all) {
    const char *line = strchr(calls[0], ' '), *blank = strstr(line, "\r\n\r\n");
    char head[4096] = "DELETE", *to = head + 6, answer[1024];
    double end = now() + GOODBYE_SECONDS;
    for (const char *after; line < blank && to + 2 < head + sizeof head; line = after) {
        after = strstr(line, "\r\n") + 2;
        if (strncasecmp(line, "content-", 8) && to + (after - line) < head + sizeof head) to = mempcpy(to, line, after - line);
    }
    for (int i = 0; i < connections; i++) {
        close(all[i].fd); /* a call may still be running on it */
        if (!*all[i].session) continue;
        dial(&all[i]);
        dprintf(all[i].fd, "%.*s%s\r\n", (int)(to - head), head, all[i].session);
    }
    for (int i = 0; i < connections; i++)
        while (*all[i].session && recv(all[i].fd, answer, sizeof answer, 0) < 0 && errno == EAGAIN && now() < end) usleep(1000);
}

static void read_options(int count, char **words) {
    for (int i = 1; i < count; i++) {
        const char *word = words[i];
        char *value = i + 1 < count ? words[i + 1] : "";
        if (!strcmp(word, "--any-id")) { any_id = true; continue; }
        i++;
        if (!strcmp(word, "--port")) port = atoi(value);
        else if (!strcmp(word, "--connections")) connections = atoi(value);
        else if (!strcmp(word, "--warm")) warm = atof(value);
        else if (!strcmp(word, "--seconds")) seconds = atof(value);
        else if (!strcmp(word, "--least")) least = strtoul(value, NULL, 10);
        else if (!strcmp(word, "--longest")) longest = atof(value);
        else if (!strcmp(word, "--calls")) max_calls = strtoul(value, NULL, 10);
        else if (!strcmp(word, "--expect")) expected = value;
        else if (!strcmp(word, "--hello") && hellos < HELLOS) files[hellos++] = read_file(value);
        else if (!strcmp(word, "--call") && kinds < CALLS) calls[kinds++] = read_file(value);
        else { fprintf(stderr, "load: unknown option %s\n", word); exit(2); }
    }
    if (!port || !kinds) { fprintf(stderr, "load: --port and --call are required\n"); exit(2); }
}

int main(int count, char **words) {
    read_options(count, words);
    Connection *all = calloc(connections, sizeof *all);
    epoll = epoll_create1(0);
    for (int i = 0; i < connections; i++) {
        all[i].call = calls[i % kinds];
        dial(&all[i]);
    }
    bool ready = !hellos || say_hello(all);
    double took = ready ? measure(all) : 1;
    printf("{\"calls\": %lu, \"seconds\": %.4f, \"rate\": %.1f, \"errors\": %lu, \"reconnects\": %lu, \"greeted\": %s, "
           "\"p50\": %.4f, \"p99\": %.4f, \"max\": %.4f, \"body\": %.0f, \"first_error\": \"%s\"}\n",
           good, took, took > 0 ? good / took : 0, bad, reconnects, ready ? "true" : "false", good ? percentile_ms(0.5) : 0,
           good ? percentile_ms(0.99) : 0, slowest * 1e3, good ? (double)body_bytes / good : 0, first_error);
    fflush(stdout);
    say_goodbye(all);
    return 0;
}
