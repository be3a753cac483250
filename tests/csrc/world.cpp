#include "world.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <numeric>
#include <system_error>
#include <thread>

#include "recorded.hpp"

namespace torsh::test {
namespace {

int checked(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

Descriptor make_segment(std::size_t bytes) {
  Descriptor file(checked(memfd_create("torsh-test", MFD_CLOEXEC), "memfd_create"));
  checked(ftruncate(file.number(), static_cast<off_t>(bytes)), "ftruncate");
  return file;
}

std::pair<Descriptor, Descriptor> local_pair() {
  int both[2];
  checked(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both), "socketpair");
  return {Descriptor(both[0]), Descriptor(both[1])};
}

constexpr std::size_t mapped_pages = 256;  // of each rank

const std::vector<int>& node_of(const std::vector<std::vector<int>>& layout, int rank) {
  const auto holds = [rank](const std::vector<int>& node) { return std::find(node.begin(), node.end(), rank) != node.end(); };
  return *std::find_if(layout.begin(), layout.end(), holds);
}

bool is_wrong(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const Wrong&) {
    return true;
  } catch (...) {
  }
  return false;
}

void throw_worst(const std::vector<std::exception_ptr>& errors) {
  const auto wrong = std::find_if(errors.begin(), errors.end(), is_wrong);
  if (wrong != errors.end()) std::rethrow_exception(*wrong);
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

const char* name(across::Strategy strategy) {
  constexpr const char* names[] = {"adaptive", "standard", "ring", "tree", "hierarchical"};
  return names[static_cast<std::size_t>(strategy)];
}

}  // namespace

std::pair<Descriptor, Descriptor> tcp_pair() {
  const auto make = [] { return Descriptor(checked(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket")); };
  Descriptor listener = make(), caller = make();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* where = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  checked(bind(listener.number(), where, length), "bind");
  checked(listen(listener.number(), 1), "listen");
  checked(getsockname(listener.number(), where, &length), "getsockname");
  checked(connect(caller.number(), where, length), "connect");
  return {Descriptor(checked(accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC), "accept4")), std::move(caller)};
}

int Shape::ranks() const { return std::accumulate(nodes.begin(), nodes.end(), 0); }

std::vector<std::vector<int>> Shape::layout() const {
  std::vector<std::vector<int>> result(nodes.size());
  const auto has_room = [&](std::size_t node) { return static_cast<int>(result[node].size()) < nodes[node]; };
  std::size_t node = 0;
  for (int rank = 0; rank < ranks(); ++rank) {
    while (!has_room(node)) node = (node + 1) % nodes.size();
    result[node].push_back(rank);
    if (scattered) node = (node + 1) % nodes.size();
  }
  return result;
}

std::string Shape::words() const {
  std::string text;
  for (const int ranks_there : nodes) text.append(text.empty() ? "" : "+").append(std::to_string(ranks_there));
  text += " ranks";
  if (nodes.size() > 1) text += std::string(", ") + name(strategy) + (scattered ? ", scattered" : "") + (tcp ? ", TCP" : "");
  return text + (processors != 0 ? ", a processor each" : "") + (processors != 0 && ranks() >= tuning.two_levels_from ? ", two levels" : "") + (quota != 0 ? ", crowded" : "") + (cross_memory ? "" : ", out of reach") + (regions ? ", mapped" : "");
}

std::string describe(const Failure& failure) {
  constexpr const char* kinds[] = {"none",    "peer_lost", "peer_left", "timeout", "mismatch",
                                   "aborted", "closed",    "busy",      "nested",  "forked"};
  std::string text = kinds[static_cast<std::size_t>(failure.kind)];
  text += " of rank " + std::to_string(failure.rank) + ", found by " + std::to_string(failure.reporter) + " in operation " +
          std::to_string(failure.sequence) + " (" + std::to_string(static_cast<int>(failure.op)) + ")";
  for (const int rank : failure.missing) text += ", missing " + std::to_string(rank);
  return text;
}

World::World(Shape shape)
    : shape_(std::move(shape)), layout_(shape_.layout()), processes_(static_cast<std::size_t>(shape_.ranks())) {
  for (const int ranks : shape_.nodes) {
    segments_.push_back(make_segment(shm::Segment::bytes_for(ranks, shm::slot_bytes(shape_.tuning))));
    const std::size_t pages = shape_.regions ? mapped_pages * static_cast<std::size_t>(ranks) : 0;
    mapped_.push_back(std::make_unique<Page[]>(pages));
  }
  const auto ranks = static_cast<std::size_t>(shape_.ranks());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    recordings_.push_back(std::make_unique<Recording>());
    recordings_.back()->open();
  }
  links_.resize(ranks);
  for (auto& of_rank : links_) of_rank.resize(ranks);
  for (std::size_t node = 0; node < layout_.size(); ++node) {
    for (std::size_t other = node + 1; other < layout_.size(); ++other) {
      for (const int rank : layout_[node]) {
        for (const int peer : layout_[other]) link(rank, peer);
      }
    }
  }
}

World::~World() = default;

void World::link(int rank, int peer) {
  const auto one = static_cast<std::size_t>(rank), two = static_cast<std::size_t>(peer);
  for (int lane = 0; lane < 1 + shape_.streams; ++lane) {
    auto [here, there] = shape_.tcp ? tcp_pair() : local_pair();
    links_[one][two].push_back(std::move(here));
    links_[two][one].push_back(std::move(there));
  }
}

void World::give_process(int rank) {
  const auto at = static_cast<std::size_t>(rank);
  processes_[at] = std::make_unique<Process>();
  for (const auto& to_peer : links_[at]) {
    for (const Descriptor& each : to_peer) connections_.emplace_back(checked(fcntl(each.number(), F_DUPFD_CLOEXEC, 0), "dup"));
  }
}

int World::process(int rank) const { return processes_[static_cast<std::size_t>(rank)]->pid(); }

// The kernel ends a process' connections when it has ended.
void World::kill(int rank) {
  processes_[static_cast<std::size_t>(rank)]->end();
  for (const Descriptor& each : connections_) shutdown(each.number(), SHUT_RDWR);
}

GroupSetup World::setup(int rank) {
  GroupSetup made;
  made.layout = {rank, 0, layout_};
  made.layout.node = made.layout.node_of(rank);
  made.node.rank = made.layout.index();
  made.node.group_ranks = made.layout.local();
  for (const int peer : made.node.group_ranks) {
    const auto& process = processes_[static_cast<std::size_t>(peer)];
    made.node.pids.push_back(process && peer != rank ? process->pid() : shape_.cross_memory ? getpid() : 0);
  }
  const int file = segments_[static_cast<std::size_t>(made.layout.node)].number();
  const auto local = static_cast<int>(made.node.group_ranks.size());
  made.node.memory = shm::map_segment(file, shm::Segment::bytes_for(local, shm::slot_bytes(shape_.tuning)));
  made.node.tuning = shape_.tuning;
  made.node.world = static_cast<std::uint32_t>(shape_.ranks());
  made.node.neighbours = shape_.ranks();
  made.node.recorder = Recorder(recordings_[static_cast<std::size_t>(rank)].get(), 0, 0, made.node.world);
  made.links = std::move(links_[static_cast<std::size_t>(rank)]);
  made.strategy = shape_.strategy;
  made.limits = shape_.limits;
  return made;
}

void World::be(int rank, const std::function<void(Member&)>& body, std::barrier<>& met) {
  std::atomic<bool> interrupt{false};
  GroupSetup made = setup(rank);
  made.interrupted = [&interrupt] { return interrupt.load(); };
  Group group(std::move(made));
  shm::Channel& channel = group.channel();
  for (int cpu = 0; cpu < shape_.processors; ++cpu) CPU_SET(cpu, &channel.segment().area(channel.rank()).own.cpus);
  if (shape_.near > 0) channel.segment().area(channel.rank()).own.cache = static_cast<std::uint32_t>(channel.rank() / shape_.near + 1);
  if (shape_.quota > 0) {
    channel.segment().area(channel.rank()).own.quota = shape_.quota;
    channel.segment().area(channel.rank()).own.quota_group = 1;
  }
  group.handshake(patience);
  const std::span<std::byte> mapped = shape_.regions ? share_memory(group) : std::span<std::byte>();
  met.arrive_and_wait();  // else the first one's fault may find others in their meeting
  Member member{rank, shape_.ranks(), group, mapped, interrupt, *recordings_[static_cast<std::size_t>(rank)]};
  body(member);
}

std::span<std::byte> World::share_memory(Group& group) {
  constexpr std::size_t stride = mapped_pages * sizeof(Page);
  shm::Channel& channel = group.channel();
  const std::vector<int>& local = node_of(layout_, group.rank());
  std::byte* base = mapped_[static_cast<std::size_t>(&local - layout_.data())][0].bytes;
  group.add_region(base, stride, stride, patience);
  return {base + static_cast<std::size_t>(channel.rank()) * stride, stride};
}

void World::run(const std::function<void(Member&)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(shape_.ranks()));
  std::vector<std::thread> threads;
  std::barrier<> met(shape_.ranks());
  for (int rank = 0; rank < shape_.ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        be(rank, body, met);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  throw_worst(errors);
  const bool are_threads = std::none_of(processes_.begin(), processes_.end(), [](const auto& each) { return each != nullptr; });
  if (are_threads) check(recordings_);  // what stands for a process may set flags that are not so
}

}  // namespace torsh::test
