#include "transport/tcp/control_frame.hpp"

#include <algorithm>
#include <cstring>

namespace torsh::tcp {
namespace {

// Before the list of missing ranks.
struct Account {
  FailureKind kind;
  std::int32_t rank, reporter;
  OpKind op;
  std::uint8_t unused[3];
  std::uint64_t sequence;
  double seconds;
  Call own, other;
};
static_assert(std::is_trivially_copyable_v<Account> && sizeof(Account) == 160);

bool is_valid(const Call& call) {
  return call.kind <= OpKind::recv && static_cast<std::size_t>(call.dtype) < num_dtypes &&
         static_cast<std::size_t>(call.op) < num_reduce_ops;
}

bool is_valid(const Account& account, int ranks) {
  const auto is_rank = [ranks](std::int32_t rank) { return rank >= -1 && rank < ranks; };
  return account.kind > FailureKind::none && account.kind <= FailureKind::aborted && is_rank(account.rank) &&
         is_rank(account.reporter) && account.op <= OpKind::recv && is_valid(account.own) && is_valid(account.other);
}

}  // namespace

std::size_t account_limit(int ranks) {
  return sizeof(Account) + static_cast<std::size_t>(ranks) * sizeof(std::int32_t);
}

std::vector<std::byte> write_account(const Failure& failure) {
  const Account account{failure.kind,     failure.rank,    failure.reporter, failure.op, {},
                        failure.sequence, failure.seconds, failure.own,      failure.other};
  std::vector<std::byte> bytes(sizeof account + failure.missing.size() * sizeof(std::int32_t));
  std::memcpy(bytes.data(), &account, sizeof account);
  if (!failure.missing.empty()) {
    std::memcpy(bytes.data() + sizeof account, failure.missing.data(), bytes.size() - sizeof account);
  }
  return bytes;
}

std::optional<Failure> read_account(std::span<const std::byte> bytes, int ranks) {
  Account account;
  if (bytes.size() < sizeof account || bytes.size() > account_limit(ranks)) return std::nullopt;
  std::memcpy(&account, bytes.data(), sizeof account);
  const std::span<const std::byte> list = bytes.subspan(sizeof account);
  if (list.size() % sizeof(std::int32_t) != 0 || !is_valid(account, ranks)) return std::nullopt;
  Failure failure;
  failure.kind = account.kind;
  failure.rank = account.rank;
  failure.reporter = account.reporter;
  failure.op = account.op;
  failure.sequence = account.sequence;
  failure.seconds = account.seconds;
  failure.own = account.own;
  failure.other = account.other;
  failure.missing.resize(list.size() / sizeof(std::int32_t));
  if (!list.empty()) std::memcpy(failure.missing.data(), list.data(), list.size());
  const auto is_rank = [ranks](int rank) { return rank >= 0 && rank < ranks; };
  if (!std::all_of(failure.missing.begin(), failure.missing.end(), is_rank)) return std::nullopt;
  return failure;
}

}  // namespace torsh::tcp
