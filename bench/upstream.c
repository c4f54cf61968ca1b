/* A minimal MCP server of both eras, the upstream of the measured gateways.
 *
 *   upstream http PORT [--ports N] [--tools N] [--era both|modern|legacy]
 *   upstream stdio     [--tools N] [--era ...]
 *
 * Tools: `echo` returns its text, `big` returns 100 kB, all other tools only fill the list. One thread, no validation
 * of requests: its own cost must be negligible, so that the gateway is measured.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BIG = 100000, EVENTS = 256, READ_ROOM = 65536 };

typedef struct { char *at; size_t used, room; } Buffer;
typedef struct { const char *at; size_t size; } Slice;
typedef struct { int fd; Buffer in, out; size_t sent; } Connection;

static enum { BOTH, MODERN, LEGACY } era = BOTH;
static char *tools, *big;
static int epoll;

static void make_room(Buffer *buffer, size_t more) {
    if (buffer->used + more <= buffer->room) return;
    while (buffer->used + more > buffer->room) buffer->room = buffer->room ? buffer->room * 2 : 4096;
    buffer->at = realloc(buffer->at, buffer->room);
}

static void add(Buffer *to, const char *bytes, size_t size) {
    make_room(to, size);
    memcpy(to->at + to->used, bytes, size);
    to->used += size;
}

static void say(Buffer *to, const char *text) { add(to, text, strlen(text)); }

static void drop_front(Buffer *buffer, size_t size) {
    memmove(buffer->at, buffer->at + size, buffer->used - size);
    buffer->used -= size;
}

/* ---- JSON: find a value of an object without decoding anything ---- */

static const char *after_string(const char *p, const char *end) {
    for (p++; p < end && *p != '"'; p++)
        if (*p == '\\') p++;
    return p + 1;
}

static const char *after_value(const char *p, const char *end) {
    if (*p == '"') return after_string(p, end);
    if (*p != '{' && *p != '[') {
        while (p < end && !strchr(",}] \t\r\n", *p)) p++;
        return p;
    }
    for (int depth = 0; p < end;) {
        if (*p == '"') { p = after_string(p, end); continue; }
        if (*p == '{' || *p == '[') depth++;
        if ((*p == '}' || *p == ']') && --depth == 0) return p + 1;
        p++;
    }
    return end;
}

static Slice find(Slice object, const char *key) {
    const char *p = object.at, *end = p + object.size;
    size_t length = strlen(key);
    if (!p || (p = memchr(p, '{', object.size)) == NULL) return (Slice){NULL, 0};
    for (p++; p < end;) {
        while (p < end && strchr(", \t\r\n", *p)) p++;
        if (p >= end || *p != '"') break;
        const char *name = p;
        p = after_string(p, end);
        bool found = (size_t)(p - name) == length + 2 && !memcmp(name + 1, key, length);
        while (p < end && strchr(": \t\r\n", *p)) p++;
        if (p >= end) break;
        const char *value = p;
        p = after_value(p, end);
        if (found) return (Slice){value, p - value};
    }
    return (Slice){NULL, 0};
}

static bool is(Slice value, const char *text) {
    return value.at && value.size == strlen(text) + 2 && !memcmp(value.at + 1, text, value.size - 2);
}

/* ---- MCP ---- */

static void make_tools(int count) {
    size_t size;
    FILE *to = open_memstream(&tools, &size);
    for (int i = 0; i < count; i++) {
        char name[32];
        if (i < 2) strcpy(name, i ? "big" : "echo");
        else snprintf(name, sizeof name, "tool_%02d", i);
        fprintf(to,
                "%s{\"name\":\"%s\",\"description\":\"Does what a tool of this name does, said in one sentence of common length.\","
                "\"inputSchema\":{\"type\":\"object\",\"properties\":{\"text\":{\"title\":\"Text\",\"type\":\"string\"},"
                "\"count\":{\"default\":0,\"title\":\"Count\",\"type\":\"integer\"}}}}",
                i ? "," : "", name);
    }
    fclose(to);
    big = malloc(BIG);
    memset(big, 'x', BIG);
}

static void answer_call(Buffer *out, Slice params, const char *complete) {
    Slice text = find(find(params, "arguments"), "text");
    say(out, ",\"result\":{");
    say(out, complete);
    say(out, "\"content\":[{\"type\":\"text\",\"text\":");
    if (is(find(params, "name"), "big")) {
        say(out, "\"");
        add(out, big, BIG);
        say(out, "\"");
    } else if (text.at) add(out, text.at, text.size);
    else say(out, "\"\"");
    say(out, "}],\"isError\":false}}");
}

static void answer_initialize(Buffer *out, Slice params) {
    Slice version = find(params, "protocolVersion");
    say(out, ",\"result\":{\"protocolVersion\":");
    if (version.at && !is(version, "2026-07-28")) add(out, version.at, version.size);
    else say(out, "\"2025-11-25\"");
    say(out, ",\"capabilities\":{\"tools\":{}},\"serverInfo\":{\"name\":\"lean\",\"version\":\"1\"}}}");
}

/* Append the response to one message to `out`. Return false if there is none, because it is not a request. */
static bool answer(Buffer *out, Slice message, bool *opens) {
    Slice id = find(message, "id"), method = find(message, "method"), params = find(message, "params");
    bool modern = find(find(params, "_meta"), "io.modelcontextprotocol/protocolVersion").at != NULL;
    const char *complete = modern ? "\"resultType\":\"complete\"," : "";
    const char *cached = modern ? "\"cacheScope\":\"public\",\"ttlMs\":60000," : "";
    bool foreign = (modern && era == LEGACY) || (!modern && era == MODERN);
    if (!id.at || !method.at) return false;
    say(out, "{\"jsonrpc\":\"2.0\",\"id\":");
    add(out, id.at, id.size);
    *opens = false;
    if (foreign) {
        say(out, ",\"error\":{\"code\":-32601,\"message\":\"Method not found\"}}");
    } else if (is(method, "tools/call")) {
        answer_call(out, params, complete);
    } else if (is(method, "tools/list")) {
        say(out, ",\"result\":{");
        say(out, complete);
        say(out, cached);
        say(out, "\"tools\":[");
        say(out, tools);
        say(out, "]}}");
    } else if (is(method, "initialize")) {
        *opens = true;
        answer_initialize(out, params);
    } else if (is(method, "server/discover")) {
        say(out, ",\"result\":{\"resultType\":\"complete\",\"cacheScope\":\"public\",\"ttlMs\":60000,"
                 "\"supportedVersions\":[\"2026-07-28\"],\"capabilities\":{\"tools\":{}},"
                 "\"_meta\":{\"io.modelcontextprotocol/serverInfo\":{\"name\":\"lean\",\"version\":\"1\"}}}}");
    } else if (is(method, "ping")) {
        say(out, ",\"result\":{}}");
    } else if (is(method, "resources/list") || is(method, "prompts/list") || is(method, "resources/templates/list")) {
        say(out, ",\"result\":{");
        say(out, complete);
        say(out, cached);
        say(out, is(method, "prompts/list") ? "\"prompts\"" : is(method, "resources/list") ? "\"resources\"" : "\"resourceTemplates\"");
        say(out, ":[]}}");
    } else {
        say(out, ",\"error\":{\"code\":-32601,\"message\":\"Method not found\"}}");
    }
    return true;
}

/* ---- pipes ---- */

static int serve_pipes(void) {
    Buffer in = {0}, out = {0};
    bool opens;
    for (;;) {
        make_room(&in, READ_ROOM);
        ssize_t got = read(0, in.at + in.used, in.room - in.used);
        if (got <= 0) return 0;
        in.used += got;
        size_t done = 0;
        for (char *end; (end = memchr(in.at + done, '\n', in.used - done)); done = end - in.at + 1)
            if (answer(&out, (Slice){in.at + done, end - in.at - done}, &opens)) say(&out, "\n");
        drop_front(&in, done);
        for (size_t sent = 0; sent < out.used;) {
            ssize_t wrote = write(1, out.at + sent, out.used - sent);
            if (wrote <= 0) return 0;
            sent += wrote;
        }
        out.used = 0;
    }
}

/* ---- HTTP/1.1 ---- */

static void watch(Connection *connection, int how, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = connection};
    epoll_ctl(epoll, how, connection->fd, &event);
}

static void send_out(Connection *connection) {
    Buffer *out = &connection->out;
    while (connection->sent < out->used) {
        ssize_t sent = send(connection->fd, out->at + connection->sent, out->used - connection->sent, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) { watch(connection, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT); return; }
        if (sent < 0) break;
        connection->sent += sent;
    }
    out->used = connection->sent = 0;
}

static void answer_request(Buffer *out, const char *head, Slice body) {
    static Buffer message;
    char start[256];
    bool opens = false;
    message.used = 0;
    if (memcmp(head, "POST", 4)) {
        say(out, memcmp(head, "DELETE", 6) ? "HTTP/1.1 405 Method Not Allowed\r\nAllow: POST\r\nContent-Length: 0\r\n\r\n"
                                           : "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    } else if (!answer(&message, body, &opens)) {
        say(out, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n");
    } else {
        static int sessions;
        char session[64] = "";
        if (opens) snprintf(session, sizeof session, "Mcp-Session-Id: lean-%d\r\n", ++sessions);
        snprintf(start, sizeof start, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n%sContent-Length: %zu\r\n\r\n",
                 session, message.used);
        say(out, start);
        add(out, message.at, message.used);
    }
}

/* Assemble the body of a chunked request. Return the end of the request, or NULL if it is incomplete. */
static const char *read_chunks(const char *p, const char *end, Buffer *body) {
    for (body->used = 0;;) {
        const char *line = memmem(p, end - p, "\r\n", 2);
        if (!line) return NULL;
        size_t size = strtoul(p, NULL, 16);
        if ((size_t)(end - line) < size + 4) return NULL;
        add(body, line + 2, size);
        p = line + 2 + size + 2;
        if (!size) return p;
    }
}

/* Respond to every complete request. An incomplete rest waits for more bytes. */
static void answer_requests(Connection *connection) {
    static Buffer chunks;
    const char *p = connection->in.at, *end = p + connection->in.used;
    for (const char *blank; (blank = memmem(p, end - p, "\r\n\r\n", 4));) {
        Slice body = {blank + 4, 0};
        const char *after = NULL;
        bool chunked = false;
        for (const char *line = p; line < blank; line = (const char *)memmem(line, blank + 2 - line, "\r\n", 2) + 2) {
            if (!strncasecmp(line, "content-length:", 15)) body.size = strtoul(line + 15, NULL, 10);
            if (!strncasecmp(line, "transfer-encoding:", 18)) chunked = true;
        }
        if (chunked) {
            if (!(after = read_chunks(body.at, end, &chunks))) break;
            body = (Slice){chunks.at, chunks.used};
        } else {
            if ((size_t)(end - body.at) < body.size) break;
            after = body.at + body.size;
        }
        answer_request(&connection->out, p, body);
        p = after;
    }
    drop_front(&connection->in, p - connection->in.at);
    send_out(connection);
}

static void close_connection(Connection *connection) {
    close(connection->fd);
    free(connection->in.at);
    free(connection->out.at);
    free(connection);
}

static void serve_ready(Connection *connection, uint32_t events) {
    if (events & EPOLLOUT) {
        watch(connection, EPOLL_CTL_MOD, EPOLLIN);
        send_out(connection);
    }
    if (!(events & ~EPOLLOUT)) return;
    make_room(&connection->in, READ_ROOM);
    ssize_t got = recv(connection->fd, connection->in.at + connection->in.used, connection->in.room - connection->in.used, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) { close_connection(connection); return; }
    connection->in.used += got;
    answer_requests(connection);
}

static int listen_at(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&address, sizeof address) || listen(fd, 1024)) { perror("upstream: listen"); exit(1); }
    return fd;
}

static void accept_all(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        Connection *connection = calloc(1, sizeof *connection);
        connection->fd = fd;
        watch(connection, EPOLL_CTL_ADD, EPOLLIN);
    }
}

static void serve_http(int port, int ports) {
    Connection *listeners = calloc(ports, sizeof *listeners);
    struct epoll_event events[EVENTS];
    epoll = epoll_create1(0);
    for (int i = 0; i < ports; i++) {
        listeners[i].fd = listen_at(port + i);
        watch(&listeners[i], EPOLL_CTL_ADD, EPOLLIN);
    }
    for (;;) {
        int ready = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            Connection *connection = events[i].data.ptr;
            if (connection >= listeners && connection < listeners + ports) accept_all(connection->fd);
            else serve_ready(connection, events[i].events);
        }
    }
}

int main(int count, char **words) {
    int first = count > 1 && !strcmp(words[1], "http") ? 3 : 2, ports = 1, number = 20;
    if (count < first) { fprintf(stderr, "usage: upstream http PORT | upstream stdio\n"); return 2; }
    for (int i = first; i + 1 < count; i += 2) {
        if (!strcmp(words[i], "--ports")) ports = atoi(words[i + 1]);
        else if (!strcmp(words[i], "--tools")) number = atoi(words[i + 1]);
        else if (!strcmp(words[i], "--era")) era = words[i + 1][0] == 'm' ? MODERN : words[i + 1][0] == 'l' ? LEGACY : BOTH;
        else { fprintf(stderr, "upstream: unknown option %s\n", words[i]); return 2; }
    }
    signal(SIGPIPE, SIG_IGN);
    make_tools(number);
    if (first == 2) return serve_pipes();
    serve_http(atoi(words[2]), ports);
}
